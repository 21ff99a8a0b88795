"""The claim linter: holds the numbers of a document to each other, to arithmetic and to the hardware.

A reader turns Markdown or printed output into tables of typed cells and sentences; rules are pure
functions from there to claims that do not hold. A printed 9.1 means any value in [9.05, 9.15]: a rule speaks only if no values
that print so can agree.
"""

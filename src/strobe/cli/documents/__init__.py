"""The JSON document of every verb, as structs that the manual is generated from and that the tests hold what is printed to."""

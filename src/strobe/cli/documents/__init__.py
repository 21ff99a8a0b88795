"""JSON document of every verb, as structs; the manual is generated from them and the tests check output against them."""

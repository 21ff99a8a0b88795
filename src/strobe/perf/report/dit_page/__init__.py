"""The page of `strobe profile dit`: seven sections, as the guide of the field has them."""

"""How far apart two clips are, with every definition stated. Stands on `core` alone and needs no weights."""

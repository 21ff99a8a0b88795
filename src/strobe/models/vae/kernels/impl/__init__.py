"""The kernels: each impl has the same functions of the same arguments, already checked."""

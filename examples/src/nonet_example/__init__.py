"""An example package of Nonet tasks; examples/README.md lists its modules."""

"""An example of a package of Nonet tasks; examples/README.md says what is where."""

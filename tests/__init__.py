"""The tests. A package, so that one called ``tests`` which a library installs does not hide them."""

"""Why the AP of a results file is what it is: kinds of errors, their cost, and comparisons of results."""

"""How well memory is found again: `make recall-bench` asks the questions of a data set."""

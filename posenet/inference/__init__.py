"""From a picture to people: decoding, prediction, evaluation and drawing."""

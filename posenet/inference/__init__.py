"""Finding people in images: prediction, decoding, evaluation with COCO, export to ONNX, and media in and out."""

"""What prediction writes: drawings, files of people, among them one that shows what is done, and the summary."""

"""What prediction writes: drawings, files of people, the journal from which a run resumes, and the summary."""

"""Write the report of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posenet.diagnosis.result import Comparison, Diagnosis
from posenet.files import write_atomically
from posenet.report.gallery import choose_images
from posenet.report.html import render_page
from posenet.report.page_data import build_page_data
from posenet.report.thumbnails import read_thumbnails
from posenet.settings import DataConfig, ExifFrame

REPORT_FILE = "report.html"


def write_report(
    diagnoses: Sequence[Diagnosis],
    comparison: Comparison | None,
    output_dir: str | Path,
    images_dir: str | Path | None = None,
    *,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    progress: bool = True,
) -> Path:
    """Write ``report.html``, a page that needs neither a network nor other files.

    Args:
        diagnoses: of one results file, or of several for the same annotations.
        comparison: of several results files with the first; None for one.
        output_dir: folder of the page, which is created if necessary.
        images_dir: folder of the images. The page shows small copies of those in its gallery. Without it, and for
            images that cannot be read, the people are drawn on a plain ground.
        exif_frame: see ``find_annotated_frame``.
        progress: show a progress bar while the images are read.

    Returns:
        The path of the page.
    """
    chosen = choose_images(diagnoses, comparison)
    images = [diagnoses[0].images[index] for index in chosen]
    thumbnails = read_thumbnails(
        images, None if images_dir is None else Path(images_dir), exif_frame=exif_frame, progress=progress
    )
    path = Path(output_dir, REPORT_FILE)
    write_atomically(path, render_page(build_page_data(diagnoses, comparison, chosen, thumbnails)).encode())
    return path

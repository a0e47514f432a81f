"""What reading a file of annotations did: the list that ``lint`` prints, and that every tool says in short."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from posenet.errors import DataError
from posenet.messages import to_single_line

Kind = Literal["contradiction", "warning", "left out", "derived"]
"""Without a right reading, so that tools stop; used, but perhaps wrong; not used; determined by other values."""
Ids = Sequence[object] | np.ndarray
"""What names the rows of a section: ids or file names."""
MAX_LINE = 160
"""Characters of a line; places that do not fit are left away."""
SINGLE_PLACES, SINGLE_SHARE = 2, 0.05
"""So many places, in files of any size, or this share of the entries may have a fault of their own. If more have it,
the fault is that of the whole file."""

OTHER_AREAS = "AP differs from that of programs that use the areas of the file"
ENTRIES: dict[str, tuple[str, str]] = {
    # Images
    "image-id": ("images without an id, or with the same one", "which is annotated? Number them, in image_id too"),
    "text-id": ("ids of images that are texts", "results name the numbers that replace them"),
    "repeated-image": ("images listed twice", "taken as one"),
    "unlabelled-frame": ("frames that is_labeled marks as not annotated", "they show people all the same"),
    "paths": ("names of images changed to those in the folder", "look at one if in doubt"),
    "file-name": ("images without a file name in the image folder", "write the path relative to the folder"),
    "size": ("sizes of images read from the files", "they had none"),
    "image-size": ("images without width and height", "write the size of the annotated images, or name their folder"),
    "unreadable-file": ("images that cannot be read", "check the folder, or save them again"),
    "wrong-size": ("images of other proportions than annotated", "restore the images that were annotated"),
    "resized": ("images of another size than annotated", "the annotations are scaled to the files"),
    "exif-by-setting": ("images whose size fits both EXIF frames", "if keypoints are wrong, set data.exif_frame"),
    "exif-turned": ("images annotated as stored, not as displayed", "their annotations are turned"),
    "exif-mirrored": ("images that EXIF mirrors, annotated as stored", "left is right: save them as displayed"),
    "exif-size": ("images with the size of the stored, keypoints of the displayed image", "write the displayed size"),
    "exif-other": ("annotations of other categories in images that are turned", "read them alone, with --skeleton"),
    "copies": ("copies of an image with other annotations", "merged: each would teach that the others are absent"),
    "ignored-regions": ("images with ignored regions", "they are crowds, of which nothing is taught"),
    "emptied-image": ("images of which no annotation is left", "correct their annotations"),
    # Categories
    "no-categories": ("no category is listed", "all annotations are of one"),
    "category-id": ("categories with the id of another one", "number them"),
    "names-of-skeleton": ("categories that do not name their keypoints", "the names are those of the skeleton"),
    "numbered-keypoints": ("categories that do not name their keypoints", "they are keypoint_1 and so on"),
    "keypoint-order": ("categories with the skeleton's keypoints in another spelling or order", "turned to its order"),
    "edges": ("edges that lead to no keypoint", "all of their category are left out, they are those of another one"),
    "no-such-category": ("annotations of categories that are not listed", "correct category_id, or list the category"),
    "same-category": ("ids of categories that are not listed", "all have the same keypoints: taken for the first"),
    # Annotations
    "annotation-id": ("annotations with an id that is a text or not their own", "numbered"),
    "no-image": ("annotations of images that are not listed", "correct image_id, or list the image"),
    "keypoint-values": ("annotations without three numbers for each name", "correct the names, or choose a skeleton"),
    "no-visibility": ("annotations with keypoints of x and y only", "labelled unless they are 0, 0"),
    "no-number": ("annotations with keypoints that are null or not finite", "these are not labelled"),
    "visibility": ("annotations with another visibility than 0, 1, 2, as a confidence", "labelled where it is above 0"),
    "labelled-at-zero": ("annotations with labelled keypoints at (0, 0)", "these are not labelled"),
    "normalised": ("annotations with keypoints between 0 and 1", "write pixels of the image"),
    "percent": ("no keypoint is beyond 100 in larger images", "write keypoints and boxes in pixels"),
    "damaged-outline": ("outlines that are damaged or of another image size", "their box is the mask"),
    "no-box": ("boxes computed from outlines or keypoints", "they had none"),
    "empty-annotation": ("annotations without keypoints, box and outline", "nothing says where they are"),
    "outline-area": ("areas computed from outlines", OTHER_AREAS),
    "box-area": ("areas set to 0.53 of the box (0.84 around keypoints)", OTHER_AREAS),
    "num-keypoints": ("annotations with a wrong num_keypoints", "counted"),
    "same-keypoints": ("annotations with exactly the keypoints of another one in their image", "one of each is used"),
    # Comparisons
    "no-keypoints": ("no category has keypoints", "list the names of the keypoints, in the order of the annotations"),
    "no-such-keypoints": ("no category has the skeleton's keypoints", "draft its own skeleton, or fix the order"),
    "other-keypoints": ("categories with other keypoints than the skeleton", "draft theirs with --category"),
    "several-skeletons": ("categories with different keypoints", "one network learns one: draft it with --category"),
    "no-category": ("annotations with keypoints in a category that lists none", "correct category_id"),
    "nothing-labelled": ("no annotation has a labelled keypoint", "write visibility 1 or 2 where they are labelled"),
    "never-labelled": ("keypoints that no annotation has", "the network learns that they are nowhere"),
    "unlabelled-place": ("annotations with coordinates whose visibility is 0", "these are not learned"),
    "many-people": ("images with more than 20 people", "COCO's evaluation uses 20 results, and misses the others"),
    "outside": ("annotations with keypoints outside their image", "not labelled; if images were shrunk, scale both"),
    "box-elsewhere": ("annotations with most keypoints outside their box", "write bbox as x, y, width, height"),
    "far-from-box": ("annotations with keypoints far outside their own box", "look at the image"),
    "box-corners": ("boxes around their keypoints only if they are two corners", "write x, y, width, height"),
    "box-outside": ("boxes that reach far beyond their image", "write bbox as x, y, width, height, in pixels"),
    "flip-pairs": ("left and right names that the skeleton pairs otherwise", "mirrored images teach wrong sides"),
    "swapped-here": ("annotations with left and right exchanged in one pair", "swap them if they are confused"),
    "no-sides": ("keypoints without a twin", "a drafted skeleton mirrors no images; write left_right in it"),
}  # fmt: skip
"""What an adjustment concerns, in the plural, and what follows from it or what to do, by code."""


@dataclass(frozen=True)
class Adjustment:
    """One thing that the reader did or found, at all its places."""

    kind: Kind
    code: str
    message: str
    consequence: str
    places: list[str]
    """Ids of images or annotations, file names or keypoints; empty if it concerns the whole file."""

    def __str__(self) -> str:
        """One line with the places that fit, but always the first; what to do is cut before that."""
        shown = min(len(self.places), 1)
        while shown < len(self.places) and len(self._line(shown + 1)) <= MAX_LINE:
            shown += 1
        line, end = self._line(shown), f"... [{self.code}]"
        return line if len(line) <= MAX_LINE else line[: MAX_LINE - len(end)] + end

    def _line(self, shown: int) -> str:
        more = ", ..." if shown < len(self.places) else ""
        places = ", ".join(map(to_single_line, self.places[:shown]))
        places = f": {len(self.places)} ({places}{more})" if self.places else ""
        return f"{self.kind}: {self.message}{places}; {self.consequence} [{self.code}]"


def are_few(count: int, total: int, share: float = SINGLE_SHARE) -> bool:
    """Whether so many entries of all may have a fault of their own."""
    return count <= max(SINGLE_PLACES, share * total)


class Adjustments(list[Adjustment]):
    """All of one reading."""

    def add(self, kind: Kind, code: str, places: Iterable[object] = ()) -> None:
        """Add one of ``ENTRIES`` that concerns the whole file, or some places."""
        self.append(Adjustment(kind, code, *ENTRIES[code], [str(place) for place in places]))

    def add_rows(self, kind: Kind, code: str, is_concerned: Any, ids: Ids) -> None:
        """Add one for the rows of (rows,) bools, unless there are none. The places are the ``ids``."""
        if rows := np.flatnonzero(is_concerned).tolist():
            self.add(kind, code, [ids[row] for row in rows])

    def leave_out_few(self, code: str, is_faulty: Any, ids: Ids, total: int = 0) -> Any:
        """The rows to leave out: the faulty ones if they are few of ``total`` rows; else none, and a contradiction."""
        is_faulty = np.asarray(is_faulty, bool)
        count, total = int(is_faulty.sum()), total or len(is_faulty)
        is_single = are_few(count, total) and 2 * count <= total
        self.add_rows("left out" if is_single else "contradiction", code, is_faulty, ids)
        return is_faulty & is_single

    def sorted(self) -> list[Adjustment]:
        """All, what stops first."""
        return sorted(self, key=lambda adjustment: get_args(Kind).index(adjustment.kind))

    @property
    def contradictions(self) -> list[Adjustment]:
        return [adjustment for adjustment in self if adjustment.kind == "contradiction"]

    def refuse(self, path: object, only: Collection[str] | None = None) -> None:
        """Raise ``DataError`` for the first contradiction; with ``only``, for the first with one of these codes."""
        found = [one for one in self.contradictions if only is None or one.code in only]
        if found:
            others = f"; and {len(found) - 1} more" if len(found) > 1 else ""
            text = str(found[0]).removeprefix("contradiction: ")
            raise DataError(f"{path}: {text}{others} (posenet annotations lint lists all)")

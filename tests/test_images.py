"""Images: listing, reading, decoding, converting and writing files."""

import base64
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps, features

from posenet import images as images_module
from posenet.errors import DataError
from posenet.images import (
    apply_orientation,
    check_image,
    check_proportions,
    decode_checked_image,
    decode_image,
    find_images,
    parse_header,
    read_image,
    to_bgr,
    write_image,
)  # fmt: skip
from tests.helpers.image_bytes import encode, jpeg_declaring, png_declaring, with_orientation
from tests.helpers.oriented_images import SIZE, lit_centre, oriented_image

ORIENTATIONS = range(1, 9)
NOISE = np.random.default_rng(0).integers(0, 256, (60, 90, 3)).astype(np.uint8)


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(
    "image",
    [
        np.full((5, 7), 200, np.uint8),
        np.full((5, 7, 4), 200, np.uint8),
        np.full((5, 7, 3), 200 * 257, np.uint16),
        np.full((5, 7), 200 * 257, np.uint16),
        np.full((5, 7, 4), 200 * 257, np.uint16),
        np.full((1, 1), 200, np.uint8),
    ],
    ids=["grey", "alpha", "16-bit", "16-bit grey", "16-bit alpha", "1x1"],
)
def test_every_kind_of_image_becomes_8_bit_bgr(tmp_path: Path, image: np.ndarray) -> None:
    path = tmp_path / "bild ü.png"
    path.write_bytes(encode(image, ".png"))
    for result in (read_image(path), to_bgr(image)):
        assert result.dtype == np.uint8 and result.shape == (*image.shape[:2], 3)
        assert (result == 200).all()


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.png"
    path.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.png .*, or save it as JPEG or PNG"):
        read_image(path)


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")


def test_files_folders_and_patterns_are_expanded(tmp_path: Path) -> None:
    touch(tmp_path / "a", "2.JPG", "1.png", "notes.txt")
    touch(tmp_path / "a" / "deeper", "3.jpg")
    touch(tmp_path / "b", "odd.raw", "[1].jpg")
    a, b = tmp_path / "a", tmp_path / "b"
    assert find_images([a]) == [a / "1.png", a / "2.JPG"]
    named = [b / "odd.raw", a / "1.png", str(a), a / ".." / "a" / "1.png"]
    assert find_images(named) == [b / "odd.raw", a / "1.png", a / "2.JPG"]
    assert find_images([str(tmp_path / "**" / "*.jpg")]) == [a / "deeper" / "3.jpg", b / "[1].jpg"]
    assert find_images([str(b / "[1].jpg")]) == [b / "[1].jpg"]
    (b / "dead.jpg").symlink_to(tmp_path / "nowhere.jpg")
    assert b / "dead.jpg" in find_images([b])  # reading it is an error


def test_an_input_without_images_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path / "bare", "notes.txt")
    messages = {"nothing.jpg": "no such file", "*.png": "no file matches", "bare": "no images in folder"}
    for item, message in messages.items():
        with pytest.raises(DataError, match=message):
            find_images([str(tmp_path / item)])


def test_what_is_left_out_of_a_folder_is_counted_and_subfolders_are_searched_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(tmp_path, "a.jpg", "b.HEIC", "c.avif", "._a.jpg", "._b.heic", ".DS_Store", "d.raw", "notes")
    touch(tmp_path / "b" / "c", "1.png", "2.txt")
    touch(tmp_path / ".hidden", "1.png")
    (tmp_path / "b" / "circle").symlink_to(tmp_path)
    with pytest.raises(DataError, match="/b .*--recursive"):
        find_images([tmp_path / "b"])
    names = ["a.jpg", "b.HEIC", "c.avif"]
    assert [path.name for path in find_images([tmp_path])] == names
    assert f"left out of folder {tmp_path}: 3 " in caplog.text  # d.raw, notes and b
    found = find_images([tmp_path], recursive=True)
    assert [path.relative_to(tmp_path).as_posix() for path in found] == ["a.jpg", "b/c/1.png", "b.HEIC", "c.avif"]


def test_pil_images_paths_and_rgb_arrays_become_bgr(tmp_path: Path) -> None:
    rgb = np.ascontiguousarray(NOISE[..., ::-1])
    write_image(tmp_path / "a.png", NOISE)
    pil = Image.fromarray(rgb)
    for image in (tmp_path / "a.png", str(tmp_path / "a.png"), pil, pil.convert("RGBA")):
        for order in ("bgr", "rgb"):  # which only arrays have
            assert np.array_equal(to_bgr(image, order), NOISE)  # type: ignore[arg-type]
    assert np.array_equal(to_bgr(np.dstack([rgb, rgb[..., :1]]), "rgb"), NOISE)
    with pytest.raises(DataError, match="channels"):
        to_bgr(rgb, "RGB")  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".png", ".tif", ".ppm"])
@pytest.mark.parametrize("depth", [8, 10, 12, 16])
def test_numbers_of_fewer_bits_in_16_use_the_whole_range(
    caplog: pytest.LogCaptureFixture, suffix: str, depth: int
) -> None:
    images_module._log_bit_depth.cache_clear()
    expected = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    deep = np.round(expected * ((2**depth - 1) / 255)).astype(np.uint16)
    with_alpha = np.dstack([deep, np.full((16, 16), 65535, np.uint16)])
    data = as_array(encode(deep, suffix))
    images = (to_bgr(deep), to_bgr(deep.astype(">u2")), to_bgr(with_alpha), to_bgr(deep[..., 0]), decode_image(data))
    for image in images:
        np.testing.assert_allclose(image.astype(int), expected, atol=1)
    text = f"images of 16 bits whose brightest pixel is below {2**depth} are read as images of {depth} bits"
    assert caplog.messages == ([text] if depth < 16 else [])


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_pil_images_of_every_mode_keep_their_colours(mode: str) -> None:
    rgb = np.zeros((20, 30, 3), np.uint8)
    rgb[:10] = (200, 100, 40)
    rgb[10:] = (20, 220, 120)
    image = Image.fromarray(rgb)
    image = image.quantize(4) if mode == "P" else image.convert(mode)
    if mode in ("L", "LA"):
        rgb = np.asarray(Image.fromarray(rgb).convert("L"))[..., None].repeat(3, axis=2)
    np.testing.assert_allclose(to_bgr(image).astype(int), rgb[..., ::-1], atol=4)


@pytest.mark.parametrize(
    "image, message",
    [
        (np.full((4, 6, 3), 255.0), r"not float64; give image.astype.* or \(image \* 255\)"),
        (np.zeros((2, 40, 60, 3), np.uint8), r"shape \(2, 40, 60, 3\); .*stream\(images\)"),
        (np.zeros((3, 40, 60), np.uint8), r"shape \(3, 40, 60\); .*transpose\(1, 2, 0\)"),
        (np.zeros((0, 6, 3), np.uint8), "shape"),
        (Image.new("F", (6, 4)), "not float32"),
        (torch.zeros(4, 6, 3, requires_grad=True), "not Tensor: .*detach"),
        (Image.open(io.BytesIO(encode(NOISE)[:2000])), "JpegImageFile: .*truncated"),
        (b"\xff\xd8", "bytes: cannot be decoded"),
        (io.StringIO("text"), "not StringIO"),
        ("data:image/png;base64,abc", "not str"),
        (7, "not int"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_image_is_one_line(image: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        to_bgr(image)
    assert "\n" not in str(caught.value)


def test_arrays_in_any_memory_layout_are_the_same_image() -> None:
    mirrored = np.ascontiguousarray(NOISE[::-1, ::-1])
    views = [NOISE[...], np.asfortranarray(NOISE), np.repeat(NOISE, 2, axis=1)[:, ::2], mirrored[::-1, ::-1]]
    for image in (*views, torch.from_numpy(NOISE.copy())):
        assert np.array_equal(to_bgr(image), NOISE)  # type: ignore[arg-type]
        assert np.array_equal(to_bgr(image, "rgb"), NOISE[..., ::-1])  # type: ignore[arg-type]


def test_resizing_to_whole_pixels_changes_no_proportions_and_cropping_does() -> None:
    """The height of 667 pixels becomes 66.7, and so 67 or, by other programs, 66."""
    for small in ((67, 100), (66, 100)):
        check_proportions("a.jpg", small, (667, 1000))
        check_proportions("a.jpg", (667, 1000), small)
    for cropped in ((60, 100), (100, 67)):
        with pytest.raises(DataError, match="a.jpg is .* pixels, annotated as 1000 x 667; .*not cropped or turned"):
            check_proportions("a.jpg", cropped, (667, 1000))


def test_a_format_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for name, width in (("x.docx", 2), ("x.webp", 17000)):
        with pytest.raises(DataError, match=f"cannot write .*{name}: .*; choose .png"):
            write_image(tmp_path / name, np.zeros((2, width, 3), np.uint8))
        assert not (tmp_path / name).exists()


class TestHeaders:
    @pytest.mark.parametrize("make", [jpeg_declaring, png_declaring])
    def test_the_size_is_read_without_decoding_and_a_vast_image_refused(
        self, make: Callable[[int, int], bytes]
    ) -> None:
        for height, width in ((1, 1), (65535, 3), (9000, 19000)):
            assert parse_header(io.BytesIO(make(height, width))) == (height, width, 1)
        for decode in (decode_image, check_image):
            with pytest.raises(ValueError, match="is too large"):
                decode(as_array(make(30000, 40000)))

    def test_the_limit_of_pillow_is_that_of_the_program_around(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where the program makes an error of the warning that comes before."""
        data = as_array(with_orientation(encode(NOISE), 6))
        for share in (1, 3):
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", NOISE.shape[0] * NOISE.shape[1] // share - 1)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(ValueError, match=r"is too large \(Image size .*pixels\)"):
                    decode_image(data)

    def test_damaged_exif_data_are_no_orientation(self) -> None:
        data = with_orientation(encode(NOISE), 6)
        for place in range(12, 36):
            damaged = bytearray(data)
            damaged[place] ^= 0xFF
            header = parse_header(io.BytesIO(bytes(damaged)))
            assert header.stored_size == (60, 90)
            assert header.orientation in (1, 6)

    def test_lab_colours_are_refused(self) -> None:
        file = io.BytesIO()
        Image.new("LAB", (6, 4)).save(file, "TIFF")
        for read in (decode_image, check_image):
            with pytest.raises(ValueError, match="has Lab colours.*; save it as JPEG or PNG"):
                read(as_array(file.getvalue()))

    def test_a_format_that_only_opencv_reads_is_decoded(self) -> None:
        assert parse_header(io.BytesIO(encode(NOISE, ".sr"))) == (60, 90, 1)
        cut = b"Pf\n4 3\n-1.0\n" + bytes(3)
        with pytest.raises(ValueError, match="cannot be decoded"):
            parse_header(io.BytesIO(cut))


class TestDecoding:
    def test_a_checked_image_has_the_expected_size_and_is_not_turned(self) -> None:
        data = as_array(with_orientation(encode(NOISE), 6))
        assert decode_checked_image(data, 60, 90).shape == (60, 90, 3)
        assert decode_checked_image(data, 60, 90, 8).shape == (8, 12, 3)
        assert decode_image(data).shape == (90, 60, 3)
        with pytest.raises(ValueError, match="has 90 x 60 pixels instead of 60 x 90"):
            decode_checked_image(data, 90, 60)

    def test_damaged_bytes_cannot_be_decoded(self) -> None:
        for data in (b"no image", jpeg_declaring(8, 8)[:100], b""):
            for decode in (decode_image, check_image):
                with pytest.raises(ValueError, match="cannot be decoded"):
                    decode(as_array(data))

    @pytest.mark.parametrize("progressive", [0, 1], ids=["baseline", "progressive"])
    def test_a_jpeg_without_its_last_bytes_is_an_image_but_not_without_data_of_the_picture(
        self, progressive: int, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Some cameras end a file after the last data of the picture; motion photos have a film after the end.

        OpenCV may compute missing pixels from nothing, and write lines of its own to the terminal. An interrupted copy
        may have the full length, filled with zeros, which are valid codes of grey pixels.
        """
        data = encode(NOISE, ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
        film = b"ftypmp42\xff\xda" + bytes(100)
        ends = [data[:-missing] + end for missing in (1, 2) for end in (b"", bytes(missing), bytes(1000))]
        for whole in map(as_array, [*ends, data + film]):
            np.testing.assert_array_equal(decode_image(whole), decode_image(as_array(data)))
            assert check_image(whole).stored_size == NOISE.shape[:2]
        for missing in (3, 6, 100, 2000):
            for end in (b"", bytes(missing)):
                for decode in (decode_image, check_image):
                    with pytest.raises(ValueError, match="is cut off"):
                        decode(as_array(data[:-missing] + end))
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
    def test_heic_and_avif_are_decoded_upright(self, kind: str) -> None:
        pytest.importorskip("pillow_heif").register_heif_opener()
        image = np.zeros((40, 60, 3), np.uint8)
        image[:20, :30] = (250, 120, 10)
        file = io.BytesIO()
        Image.fromarray(image[..., ::-1]).save(file, kind, quality=95)
        decoded = decode_image(as_array(file.getvalue()))
        assert decoded.shape == (40, 60, 3) and decoded.dtype == np.uint8
        np.testing.assert_allclose(decoded[10, 10].astype(int), (250, 120, 10), atol=12)
        header = check_image(as_array(file.getvalue()))
        assert (header.height, header.width) == (40, 60)
        with pytest.raises(ValueError, match="cannot be decoded"):
            decode_image(as_array(file.getvalue()[:-100]))

    def test_without_the_extra_heic_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pillow_heif", None)
        with pytest.raises(ValueError, match=r"\[heif\]"):
            decode_image(as_array(b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf"))
        with pytest.raises(ValueError, match="^cannot be decoded; copy"):  # the extra does not help with a video
            decode_image(as_array(b"\0\0\0\x1cftypisom\0\0\2\0isomiso2avc1mp41"))


class TestOrientation:
    @pytest.mark.parametrize("suffix", ["jpeg", "png", "webp"])
    def test_an_image_is_displayed_as_pillow_displays_it(self, tmp_path: Path, suffix: str) -> None:
        """A PIL image too, which is not turned twice."""
        for orientation in ORIENTATIONS:
            drawn = oriented_image(orientation, suffix=suffix)
            data = as_array(drawn.data)
            assert parse_header(io.BytesIO(data)) == (*SIZE, orientation)
            (tmp_path / "a").write_bytes(drawn.data)
            stored = decode_checked_image(data, *drawn.sizes["stored"])
            displayed = read_image(tmp_path / "a")
            for frame, image in (("displayed", displayed), ("stored", stored)):
                assert image.shape[:2] == drawn.sizes[frame]
                assert lit_centre(image) == pytest.approx(drawn.centres[frame], abs=0.6)
            with Image.open(tmp_path / "a") as pil:
                assert np.abs(to_bgr(pil).astype(int) - displayed).max() < 30
                assert np.array_equal(to_bgr(ImageOps.exif_transpose(pil)), to_bgr(pil))

    @pytest.mark.parametrize("kind", ["AVIF", "TIFF"])
    def test_files_with_one_frame_are_turned_by_their_decoder(self, kind: str) -> None:
        if kind == "AVIF" and not features.check("avif"):
            pytest.skip("Pillow was built without AVIF")
        pixels = np.zeros((40, 60, 3), np.uint8)
        pixels[:20, :30] = 200
        for orientation in ORIENTATIONS:
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = orientation
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, kind, exif=exif)
            data = as_array(file.getvalue())
            expected = apply_orientation(pixels, orientation)
            for image in (decode_image(data), to_bgr(Image.open(file))):
                assert image.shape == expected.shape
                assert np.abs(image.astype(int) - expected).mean() < 4
            assert parse_header(io.BytesIO(data)) == (*expected.shape[:2], 1)

    def test_a_reduced_image_is_turned_too(self) -> None:
        for orientation in ORIENTATIONS:
            drawn = oriented_image(orientation)
            image = decode_checked_image(as_array(drawn.data), *drawn.sizes["displayed"], 8, orientation)
            x, y = (8 * value + 3.5 for value in lit_centre(image))
            assert (x, y) == pytest.approx(drawn.centres["displayed"], abs=4)
        assert apply_orientation(NOISE, 1) is NOISE, "nothing is copied where there is no orientation"


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_the_bytes_of_an_image_file_are_an_image_however_they_are_given(suffix: str) -> None:
    data = encode(NOISE, suffix)
    expected = decode_image(as_array(data))
    text = f"data:image/{suffix[1:]};base64,{base64.b64encode(data).decode()}"
    for given in (data, bytearray(data), memoryview(data), io.BytesIO(data), as_array(data), text):
        np.testing.assert_array_equal(to_bgr(given), expected)

"""The registries of weights: the built-in one, those of users, and errors in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from posenet.checkpoints.registry import home_folder, read_registries
from posenet.errors import ConfigError
from posenet.skeleton import COCO


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a user's registry, which a test writes."""
    path = tmp_path / "mine.toml"
    monkeypatch.setenv("POSENET_REGISTRY", str(path))
    return path


def test_the_weights_of_the_authors_are_registered() -> None:
    entry = read_registries()["simplepose"]
    config = entry.config()
    assert entry.google_drive == "1gLa2oNxnbFPo0BjnpPaiAmWJwyND8wkA"
    assert entry.license == "none stated"
    assert config is not None
    assert config.model.skeleton == COCO
    assert (config.model.stacks, config.model.width, config.model.growth) == (4, 256, 128)


def test_users_add_names_and_replace_built_in_ones(registry: Path, tmp_path: Path) -> None:
    registry.write_text(
        "[mine]\nurl = 'https://example.org/a.pth'\nlicense = 'CC0'\n[simplepose]\nfile = 'local.pth'\n", "utf-8"
    )
    entries = read_registries()
    assert entries["mine"].license == "CC0"
    assert entries["mine"].config() is None
    assert entries["simplepose"].local_path == tmp_path / "local.pth"


def test_several_registries_are_read_in_order(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = tmp_path / "second.toml"
    registry.write_text("[a]\nfile = 'one.pth'\n[b]\nfile = 'one.pth'\n")
    second.write_text("[b]\nfile = 'two.pth'\n")
    monkeypatch.setenv("POSENET_REGISTRY", f"{registry}{os.pathsep}{second}")
    entries = read_registries()
    assert [entries["a"].file, entries["b"].file] == ["one.pth", "two.pth"]


def test_without_the_variable_the_registry_in_the_config_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POSENET_REGISTRY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "mine" not in read_registries()
    (tmp_path / "posenet").mkdir()
    (tmp_path / "posenet" / "weights.toml").write_text("[mine]\nfile = 'a.pth'\n")
    assert "mine" in read_registries()


def test_a_skeleton_is_relative_to_its_registry(registry: Path, tmp_path: Path) -> None:
    (tmp_path / "stick.toml").write_text("keypoints = ['top', 'bottom']\nparts = [['top', 'bottom']]\n")
    registry.write_text("[sticks]\nfile = 'a.pth'\n[sticks.model]\nskeleton = 'stick.toml'\nstacks = 2\n")
    config = read_registries()["sticks"].config()
    assert config is not None
    assert config.model.skeleton.keypoints == ("top", "bottom")
    assert config.model.stacks == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mine]\nlicense = 'CC0'", "mine needs exactly one of google_drive, url, file"),
        ("[mine]\nurl = 'https://a.org/b'\nfile = 'c'", "mine needs exactly one of"),
        ("[mine]\nurl = 'file:///etc/passwd'", "mine.url must start with http"),
        ("[mine]\nlicence = 'CC0'", "unknown key mine.licence .did you mean license"),
        ("[mine]\nurl = 3", "mine.url must be text"),
        ("[mine]\nurl = 'https://a.org/b'\nmodel = 'big'", "mine.model must be a table"),
        ("[mine]\nurl = 'https://a.org/b'\nsha256 = '12'", "mine.sha256 must have 64"),
        ("['../mine']\nurl = 'https://a.org/b'", "'../mine' is not a name"),
        ("mine = 3", "mine must be a table"),
        ("[mine", "not valid TOML"),
    ],
)
def test_errors_of_a_registry_name_the_file_and_the_key(registry: Path, text: str, message: str) -> None:
    registry.write_text(text)
    with pytest.raises(ConfigError, match=f"mine.toml.*{message}"):
        read_registries()


def test_settings_that_are_not_valid_name_the_registry_and_the_entry(registry: Path) -> None:
    registry.write_text("[mine]\nfile = 'a.pth'\n[mine.model]\nstacks = 0\n")
    with pytest.raises(ConfigError, match=r"mine.toml: mine: model.stacks"):
        read_registries()["mine"].config()


def test_a_missing_registry_names_the_variable(registry: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine.toml.*correct POSENET_REGISTRY"):
        read_registries()


def test_a_password_in_an_address_is_not_shown(registry: Path) -> None:
    registry.write_text("[mine]\nurl = 'https://me:secret@example.org/a.pth'\n")
    assert read_registries()["mine"].source == "https://example.org/a.pth"


def test_the_home_folder_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSENET_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_folder() == tmp_path / ".cache" / "posenet"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert home_folder() == Path("/cache/posenet")
    monkeypatch.setenv("POSENET_HOME", "/home")
    assert home_folder() == Path("/home")

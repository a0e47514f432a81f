#!/usr/bin/env bash
# Downloads the COCO 2017 images and person keypoint annotations (about 19 GB) into data/coco or the given folder.
# It can be interrupted and run again: complete archives are skipped, partial downloads continue.
set -euo pipefail
case ${1:-} in -*) echo "usage: data/download_coco.sh [FOLDER]"; exit 2 ;; esac
folder=${1:-"$(dirname "$0")/coco"}
mkdir -p "$folder"
cd "$folder"

fetch() {  # fetch URL FOLDER: download an archive and unpack it; FOLDER is the folder it contains
    [ -e ".${2//\//_}.done" ] && return
    local archive=${1##*/}
    curl --fail --location --continue-at - --output "$archive" "$1"
    unzip -q -o "$archive"
    touch ".${2//\//_}.done"
    rm "$archive"
}

fetch http://images.cocodataset.org/annotations/annotations_trainval2017.zip annotations
fetch http://images.cocodataset.org/zips/val2017.zip val2017
fetch http://images.cocodataset.org/zips/train2017.zip train2017
echo "COCO is in $folder"

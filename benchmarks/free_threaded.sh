#!/usr/bin/env bash
# Build a free-threaded CPython from Debian's source package, and print the path of its interpreter:
#
#     python=$(bash benchmarks/free_threaded.sh /tmp/free-threaded)
#     "$python" -m venv /tmp/without-gil
#
# The suite is "testing" unless a second argument names another, the package is python3.13 unless a
# third does. The package comes from the mirror that apt uses here, and apt checks it: the signature
# of the suite's list, which has the checksums. apt's own settings stay as they are. What Debian
# changes in the source, above all for its own places, is left out. It needs Debian, 1 GB of disk,
# and minutes: as it is for tests and measurements of the package, it is built without PGO and LTO.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: $0 FOLDER [SUITE [PACKAGE]]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd) suite=${2:-testing} package=${3:-python3.13}

needed="gcc make xz-utils debian-archive-keyring libssl-dev libffi-dev zlib1g-dev libbz2-dev
    liblzma-dev libsqlite3-dev"
for each in $needed; do
    dpkg-query -W -f '${Status}' "$each" 2>/dev/null | grep -q 'ok installed' || missing+=" $each"
done
if [ -n "${missing-}" ]; then
    echo "expected these packages of Debian, which are not installed: apt-get install$missing" >&2
    exit 1
fi

python=$folder/installed/bin/python3
if [ ! -x "$python" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' |
        head -n 1)
    [ -n "$mirror" ] || { echo "apt knows no mirror of Debian: run apt-get update" >&2; exit 1; }
    mkdir -p "$folder"/{lists,cache,download,source}
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" \
        >"$folder/sources.list"
    apt() {
        nice -n 19 apt-get -q -o Dir::Etc::SourceList="$folder/sources.list" \
            -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$folder/lists" \
            -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root "$@" >&2
    }
    apt update
    (cd "$folder/download" && apt source --download-only "$package")
    tar -xJf "$folder"/download/"$package"_*.orig.tar.xz -C "$folder/source" --strip-components 1
    (
        cd "$folder/source"
        nice -n 19 ./configure --disable-gil --prefix="$folder/installed"
        nice -n 19 make -j2
        nice -n 19 make install
    ) >"$folder/build.log" 2>&1 || { tail -n 30 "$folder/build.log" >&2; exit 1; }
fi
PYTHON_GIL=0 "$python" -c 'import sys; sys.exit(sys._is_gil_enabled())'
echo "$python"

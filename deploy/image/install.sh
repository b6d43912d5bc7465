#!/bin/sh
# Install the packages of an image into a clean folder: install.sh control-plane|trainer FOLDER
#
# They are those that the list beside this script names, in the versions and with the hashes of constraints.txt. The
# Dockerfile runs this in a folder laid out as the repository is, and so do the tests, without a builder.
set -eu
target=$1
folder=$2
lists=$(dirname "$0")

# The blocks of constraints.txt (`name==version`, then its hashes, indented) whose name is in the list.
awk 'NR == FNR { wanted[$1]; next } /^[^ ]/ { split($1, pin, "=="); take = pin[1] in wanted } take' \
    "$lists/$target.txt" "$lists/../../constraints.txt" > "$folder.pins"
python -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
    --require-hashes --no-deps --no-compile --target "$folder" -r "$folder.pins"
rm "$folder.pins"

if [ "$target" = trainer ]; then
    parameter_server=tensorflow.python.distribute.parameter_server_strategy_v2
    python -S "$lists/compile.py" "$folder" tensorflow keras "$parameter_server" sklearn.datasets
    exit
fi

# What no service runs: what packages bring to be tested, compiled or type-checked against; of the Kubernetes client all
# but version 1 of the core group, through which `weir logs` asks (services send plain requests); of scipy all but
# `optimize` and what it imports (it imports all of numpy, f2py too); colours for every language but Python. Together
# 95 MB. (A trainer runs strangers' programs, which may use anything.)
cd "$folder"
find . -type d \( -name tests -o -path ./numpy/distutils \) -prune -exec rm -r {} +
find . -type f \( -name '*.pyi' -o -name '*.h' -o -name '*.a' -o -name '*.c' -o -name '*.pyx' -o -name '*.pxd' \) -delete
(cd scipy && rm -r cluster datasets differentiate fftpack integrate interpolate io misc ndimage odr signal stats)
find kubernetes -path '*/client/api/*_api.py' ! -path kubernetes/client/api/core_v1_api.py -delete
find kubernetes -path '*/client/models/*' \( -name 'v[0-9]*alpha*' -o -name 'v[0-9]*beta*' -o -name 'v[2-9]*' \) -delete
find pygments/lexers -name '*.py' ! -name __init__.py ! -name _mapping.py ! -name python.py -delete

#!/bin/sh
# Build both images of deploy/Dockerfile and name them for a release: build_images.sh TAG [REGISTRY]
#
# Uses the first of docker, podman and buildah that works on this machine. BUILDER names another one (its command), BASE
# another base image than the Dockerfile's, and OPTIONS are further words for its `build`.
set -eu
cd "$(dirname "$0")/.."
tag=${1:?"which tag? build_images.sh TAG [REGISTRY]"}
registry=${2:-}
prefix=${registry:+${registry%/}/}

found=
missing=
for builder in ${BUILDER:-docker podman buildah}; do
    if ! command -v "$builder" > /dev/null; then
        missing="$missing
  $builder: not installed"
    elif ! "$builder" info > /dev/null 2>&1; then
        missing="$missing
  $builder: installed, but \`$builder info\` fails (does its engine run, and may you use it?)"
    else
        found=$builder
        break
    fi
done
if [ -z "$found" ]; then
    echo "No image was built, because nothing here can build one:$missing
Install one of them, Debian: apt-get install buildah (it needs no engine)." >&2
    exit 1
fi

for target in control-plane trainer; do
    name=${prefix}weir
    [ "$target" = control-plane ] || name=${prefix}weir-trainer
    echo "$found builds $name:$tag"
    # shellcheck disable=SC2086 # OPTIONS are several words
    "$found" build ${BASE:+--build-arg "PYTHON=$BASE"} ${OPTIONS:-} \
        -f deploy/Dockerfile --target "$target" -t "$name:$tag" .
done

echo "Both images are built. In \`images:\` of the overlay:
  - {name: weir, newName: ${prefix}weir, newTag: $tag}
  - {name: weir-trainer, newName: ${prefix}weir-trainer, newTag: $tag}"
if [ -n "$registry" ]; then
    echo "Push them: $found push ${prefix}weir:$tag && $found push ${prefix}weir-trainer:$tag"
fi

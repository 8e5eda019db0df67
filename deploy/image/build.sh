#!/usr/bin/env bash
# Build a variant of the image with buildah, on a base that debootstrap makes; for machines without Docker and registry.
#   deploy/image/build.sh [VARIANT]     core, onnx (default), full, gpu; as root
# Needs `apt install buildah debootstrap crun`. $WORK (a temporary directory) keeps the base between runs. The unpacked
# image is left in $WORK/VARIANT, and its size is printed.
set -euo pipefail
cd "$(dirname "$0")/../.."

variant=${1:-onnx}
work=${WORK:-$(mktemp -d)}
base=naiad-debian:bookworm
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

mkdir -p "$work"
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    rm -rf "$work/base"
    debootstrap --variant=minbase --include=ca-certificates bookworm "$work/base" ${MIRROR:+"$MIRROR"} >/dev/null
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$work/base" / >/dev/null
    buildah commit --quiet --rm "$container" "$base" >/dev/null
    rm -rf "$work/base"
fi

# The certificates and the index of pip are those of this machine.
volumes=(-v /etc/ssl/certs:/etc/ssl/certs:ro)
[ ! -e /etc/pip.conf ] || volumes+=(-v /etc/pip.conf:/etc/pip.conf:ro)
buildah bud --quiet --format docker --network host --pull-never --layers "${volumes[@]}" --build-arg "DEBIAN=localhost/$base" \
    --target "$variant" --tag "naiad:$variant" --file deploy/image/Dockerfile . >/dev/null

container=$(buildah from --pull-never "localhost/naiad:$variant")
rm -rf "${work:?}/$variant"
cp -a "$(buildah mount "$container")" "$work/$variant"
buildah umount "$container" >/dev/null
buildah rm "$container" >/dev/null
echo "$variant: $(du -sm "$work/$variant" | cut -f 1) MB in $work/$variant"

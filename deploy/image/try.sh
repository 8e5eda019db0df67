#!/usr/bin/env bash
# Start an unpacked image as a container would: process 1 of its own namespace, user 10001, read-only root, and
# only /tmp and /cache writable; wait until it is ready, infer, stop it with SIGTERM and print its exit status.
#   deploy/image/try.sh ROOT REPOSITORY [COMMAND ...]     as root; the repository has a model `same` of FP32 [ 4 ]
set -euo pipefail

root=$(realpath "$1")
models=$(realpath "$2")
shift 2
[ $# -gt 0 ] || set -- tritonserver --model-repository=/models --drain-seconds=1
port=${PORT:-18000}
log=$(mktemp)
stop() {
    rm -f "$log"
    [ -z "${parent:-}" ] || kill -KILL $(pgrep -P "$parent") 2>/dev/null || true
}
trap stop EXIT

begin=$(date +%s%N)
# The shell inside is this machine's; it becomes the server.
unshare --mount --pid --fork bash -c '
    mount --bind "$1" "$1" && mount --bind "$2" "$1/models" && mount -t proc proc "$1/proc"
    mount -t tmpfs -o mode=1777 tmp "$1/tmp" && mount -t tmpfs -o mode=1777 cache "$1/cache"
    # PyTorch and TensorFlow read /dev/urandom, which every container runtime provides.
    mount -t tmpfs -o mode=755 dev "$1/dev" && mkdir -m 1777 "$1/dev/shm"
    for device in null zero random urandom; do touch "$1/dev/$device" && mount --bind "/dev/$device" "$1/dev/$device"; done
    mount -o remount,bind,ro "$1"
    root=$1; shift 2
    exec env -i PATH=/opt/naiad/bin:/usr/bin HOME=/tmp NAIAD_CACHE=/cache PYTHONUTF8=1 PYTHONDONTWRITEBYTECODE=1 \
        "$(command -v chroot)" --userspec=10001:0 "$root" "$@"
' - "$root" "$models" "$@" --http-address=127.0.0.1 --http-port="$port" --grpc-port=0 --metrics-port=0 >"$log" 2>&1 &
parent=$!
url=http://127.0.0.1:$port
until [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/v2/health/ready")" = 200 ]; do
    kill -0 $parent 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.02
done
echo "ready after $((($(date +%s%N) - begin) / 1000000)) ms"
curl -s "$url/v2/models/same/infer" -d '{"inputs":[{"name":"IN","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}' | grep -F '[1.0,2.0,3.0,4.0]'
server=$(pgrep -P $parent)
grep -E '^(Uid|NSpid):' "/proc/$server/status"
! touch "/proc/$server/root/opt/written" 2>/dev/null || { echo "the root is writable" >&2; exit 1; }
kill -TERM "$server"
status=0
wait $parent || status=$?
echo "stopped with status $status"
exit "$status"

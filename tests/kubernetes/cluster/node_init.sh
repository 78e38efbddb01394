#!/bin/bash
# Process 1 of a node's private mount and pid namespace: when it dies, everything inside dies, and every mount is gone.
# $1 the node's folder, $2 its cgroup, $3... images to load. USR1 starts the kubelet again, USR2 containerd.
set -eu
folder=$1 cgroup=$2; shift 2
mount --make-rshared /

# What kubelet and CNI would write to the machine's settings: here they find the wanted values in plain files.
mkdir -p "$folder/sysctl" "$folder/state"
setting() { local file="$folder/sysctl/${1//\//.}"; echo "$2" > "$file"; mount --bind "$file" "/proc/sys/$1"; }
setting vm/overcommit_memory 1
setting vm/panic_on_oom 0
setting kernel/panic 10
setting kernel/panic_on_oops 1
setting kernel/keys/root_maxkeys 1000000
setting kernel/keys/root_maxbytes 25000000
setting net/ipv4/ip_forward 1

# An overlay cannot lie on an overlay, as the root of a container is one.
[ "$(stat -f -c %T "$folder/state")" != overlayfs ] || mount -t tmpfs tmpfs "$folder/state"
mount -t tmpfs -o mode=755 tmpfs /run
for place in /var/lib /var/log; do
  over="$folder/state/over$place"; mkdir -p "$over/upper" "$over/work"
  mount -t overlay overlay -o "lowerdir=$place,upperdir=$over/upper,workdir=$over/work" "$place"
done
# The path of a socket has at most 107 characters, and the kubelet makes some below its root.
mkdir -p "$folder/state/containerd" "$folder/state/kubelet" /var/lib/kubelet
mount --bind "$folder/state/kubelet" /var/lib/kubelet
: > "$folder/resolv.conf"

# As after a reboot: each cgroup that an earlier life left costs three seconds at the kubelet's start.
find /sys/fs/cgroup/"$cgroup" /sys/fs/cgroup/*/"$cgroup" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null || true

containerd_start() { containerd --config "$folder/containerd.toml" >> "$folder/containerd.log" 2>&1 & }
kubelet_start() {
  kubelet --config="$folder/kubelet.yaml" --kubeconfig="$folder/kubeconfig" --root-dir=/var/lib/kubelet \
    --cert-dir="$folder/kubelet-pki" --hostname-override="$(basename "$folder")" --node-ip="$(cat "$folder/address")" \
    --v=2 >> "$folder/kubelet.log" 2>&1 &
}
containerd_start
for _ in $(seq 600); do ctr version > /dev/null 2>&1 && break; sleep 0.05; done
for image in "$@"; do ctr --namespace k8s.io images import --local "$image"; done
kubelet_start
trap kubelet_start USR1
trap containerd_start USR2
while :; do sleep 1000 & wait $! || true; done

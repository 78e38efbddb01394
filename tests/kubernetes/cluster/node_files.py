"""The configuration files of a real node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def cni(bridge: str, subnet: str, services: str, gateway: str, first: str, last: str) -> str:
    """Return a bridge with addresses of this machine, without a default route: a pod reaches this
    machine and nothing else.
    """
    ranges = [[{"subnet": subnet, "rangeStart": first, "rangeEnd": last, "gateway": gateway}]]
    plugin = {
        "type": "bridge",
        "bridge": bridge,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": False,
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/cni/networks",
            "ranges": ranges,
            "routes": [{"dst": services, "gw": gateway}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": bridge, "plugins": [plugin]}, indent=1)


def containerd(folder: Path, pause: str, plugins: Path, runc: str) -> str:
    """Return a configuration without AppArmor, CDI and NRI, for machines on which nobody can lower
    an OOM score.
    """
    state = folder / "state"
    return f"""\
version = 3
root = '{state}/containerd'
state = '/run/containerd'
oom_score = 0
imports = []
disabled_plugins = [
  'io.containerd.nri.v1.nri',
  'io.containerd.tracing.processor.v1.otlp',
  'io.containerd.internal.v1.tracing',
  'io.containerd.snapshotter.v1.blockfile',
  'io.containerd.snapshotter.v1.erofs',
  'io.containerd.differ.v1.erofs',
  'io.containerd.image-verifier.v1.bindir',
]

[grpc]
  address = '/run/containerd/containerd.sock'

[plugins.'io.containerd.internal.v1.opt']
  path = '{state}/opt'

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{pause}'

[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  enable_cdi = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{plugins}']
    conf_dir = '{folder}/cni'
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{runc}'
        SystemdCgroup = false
"""


def kubelet(folder: Path, cgroup: str, address: str, port: int, authority: Path) -> dict[str, Any]:
    """Return a configuration that reports at least every five seconds, changes nothing on the
    machine, and collects no images.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": port,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "protectKernelDefaults": True,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": True,
        "resolvConf": f"{folder}/resolv.conf",
        # Refused at once unless a test serves names there (``services.py``).
        "clusterDNS": [address],
        "clusterDomain": "cluster.local",
        "podLogsDir": "/var/log/pods",
        "volumePluginDir": "/run/kubelet-volume-plugins",
        "maxPods": 110,
        "registerWithTaints": [],
        "nodeStatusUpdateFrequency": "5s",
        "nodeLeaseDurationSeconds": 20,
        "syncFrequency": "10s",
        "serializeImagePulls": False,
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "87600h",
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "shutdownGracePeriod": "0s",
        "logging": {"format": "text"},
    }

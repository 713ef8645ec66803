"""Render a chart with Helm itself, without a cluster: a server, ``python helm.py LIBRARY``.

Helm's own Go library (``scripts/helm`` fetches it) has no call that only renders. It installs, into
an API server of ours that knows which kinds exist and refuses the record of the release, which is
the first thing that Helm writes: that record holds all that the templates gave.

A process of its own does it, as a Go runtime brings threads and signal handlers along. It reads
one JSON request a line (``chart``, ``values``, ``name``, ``namespace`` and ``existing``: objects of
the cluster, by path) and writes one answer: ``manifest``, ``hooks`` and ``notes``, or ``error``.
"""

from __future__ import annotations

import base64
import ctypes
import gzip
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What the pretended cluster knows: group and version, kinds, and whether they are in a namespace.
_KINDS = {
    "v1": ["ConfigMap", "Secret", "Service", "ServiceAccount", "Pod", "PersistentVolumeClaim"],
    "apps/v1": ["Deployment", "StatefulSet"],
    "batch/v1": ["Job"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
    "policy/v1": ["PodDisruptionBudget"],
    "networking.k8s.io/v1": ["NetworkPolicy", "Ingress"],
    "rbac.authorization.k8s.io/v1": ["Role", "RoleBinding"],
    "monitoring.coreos.com/v1": ["ServiceMonitor", "PodMonitor", "PrometheusRule"],
    "keda.sh/v1alpha1": ["ScaledObject", "TriggerAuthentication"],
}


def _plural(kind: str) -> str:
    if kind.endswith("y"):
        return kind.lower()[:-1] + "ies"
    return kind.lower() + ("es" if kind.endswith("s") else "s")


class _Cluster(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.release: dict[str, Any] | None = None
        self.existing: dict[str, Any] = {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # which would hold each body back for 40 ms
    server: _Cluster

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        known = {("api/" if "/" not in name else "apis/") + name: name for name in _KINDS}
        if path == "version":
            version = {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}
            self._reply(200, version)
        elif path == "api":
            self._reply(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "apis":
            self._reply(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups()})
        elif path in known:
            self._reply(200, _resources(known[path]))
        elif path in self.server.existing:
            self._reply(200, self.server.existing[path])
        elif "labelSelector=" in self.path:
            self._reply(200, {"kind": "SecretList", "apiVersion": "v1", "items": []})
        else:
            self._refuse(404, "NotFound")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.partition("?")[0].endswith("/secrets"):
            self.server.release = _release(body)
        self._refuse(403, "Forbidden")

    def _refuse(self, code: int, reason: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        self._reply(code, {**status, "reason": reason, "message": "nothing is kept", "code": code})

    def _reply(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _groups() -> list[dict[str, Any]]:
    names = [name for name in _KINDS if "/" in name]
    versions = [{"groupVersion": name, "version": name.partition("/")[2]} for name in names]
    return [
        {"name": name.partition("/")[0], "versions": [version], "preferredVersion": version}
        for name, version in zip(names, versions, strict=True)
    ]


def _resources(name: str) -> dict[str, Any]:
    resources = [
        {
            "name": _plural(kind),
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": ["create", "get", "list"],
        }
        for kind in _KINDS[name]
    ]
    return {"kind": "APIResourceList", "groupVersion": name, "resources": resources}


def _release(body: bytes) -> dict[str, Any]:
    """What Helm writes down of a release: gzip in base64, in base64 once more where it is JSON."""
    found = re.search(rb"H4sI[A-Za-z0-9+/=]{100,}", body)
    packed = found[0] if found else base64.b64decode(json.loads(body)["data"]["release"])
    return json.loads(gzip.decompress(base64.b64decode(packed)))


class Renderer:
    """Helm's library, and a cluster for it."""

    def __init__(self, library: str) -> None:
        self._lib = ctypes.CDLL(library)
        self._lib.helm_sdkpy_last_error.restype = ctypes.c_char_p
        self._cluster = _Cluster()
        threading.Thread(target=self._cluster.serve_forever, daemon=True).start()

    def render(
        self,
        chart: str,
        values: dict[str, Any],
        name: str,
        namespace: str,
        existing: dict[str, Any],
    ) -> dict[str, Any]:
        """Objects and notes of a chart with these values, or what Helm says against them."""
        self._cluster.existing = existing
        options = {"wait": False, "timeout_seconds": 60, "disable_openapi_validation": True}
        self._cluster.release = None
        handle = ctypes.c_uint64()
        result = ctypes.c_char_p()
        texts = [name, chart, json.dumps(values), "", json.dumps(options)]
        access = self._access()
        self._call("config_create", namespace.encode(), access, None, b"{}", ctypes.byref(handle))
        try:
            arguments = [text.encode() for text in texts]
            error = self._call("install", handle, *arguments, ctypes.byref(result), may_fail=True)
        finally:
            self._lib.helm_sdkpy_config_destroy(handle)
        if self._cluster.release is None:
            return {"error": error}
        release = self._cluster.release
        hooks = [hook["manifest"] for hook in release.get("hooks") or []]
        notes = release["info"].get("notes", "")
        return {"manifest": release["manifest"], "hooks": hooks, "notes": notes}

    def _call(self, verb: str, *arguments: Any, may_fail: bool = False) -> str:
        if getattr(self._lib, f"helm_sdkpy_{verb}")(*arguments) == 0:
            return ""
        error = (self._lib.helm_sdkpy_last_error() or b"").decode()
        if not may_fail:
            raise RuntimeError(f"{verb}: {error}")
        return error

    def _access(self) -> bytes:
        url = f"http://127.0.0.1:{self._cluster.server_address[1]}"
        access = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "none", "cluster": {"server": url}}],
            "users": [{"name": "none", "user": {"token": "none"}}],
            "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
            "current-context": "none",
        }
        # A text is told from the name of a file by its lines.
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in access.items()).encode()


def main() -> None:
    renderer = Renderer(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(renderer.render(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

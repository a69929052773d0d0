"""The bill of materials, as CycloneDX 1.5."""

import datetime
import hashlib
import json
import uuid

from releasing.dependencies import BINARY, Crate
from releasing.project import Project
from releasing.targets import Target

NAMESPACE = uuid.UUID("b5f2cf0e-0f5c-5b49-9d3b-0d5c5d0c7a11")


def reference(crate: Crate) -> str:
    return f"pkg:cargo/{crate.name}@{crate.version}"


def component(crate: Crate) -> dict:
    found = {
        "type": "library",
        "bom-ref": reference(crate),
        "name": crate.name,
        "version": crate.version,
        "purl": reference(crate),
        "scope": "required",
    }
    if crate.licence:
        found["licenses"] = [{"expression": crate.licence}]
    if crate.sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": crate.sha256}]
    if crate.repository:
        found["externalReferences"] = [{"type": "vcs", "url": crate.repository}]
    return found


def document(project: Project, target: Target, crates: list[Crate], program: bytes) -> bytes:
    digest = hashlib.sha256(program).hexdigest()
    by_key = {crate.key: crate for crate in crates}
    main = by_key[f"{BINARY} {project.version}"]
    moment = datetime.datetime.fromtimestamp(project.epoch, datetime.timezone.utc)
    # The same program has the same number.
    number = uuid.uuid5(NAMESPACE, f"{target.triple} {digest}")
    top = component(main) | {"type": "application", "hashes": [{"alg": "SHA-256", "content": digest}]}
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {
            "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": top,
            "properties": [{"name": "towpath:target", "value": target.triple}],
        },
        "components": [component(crate) for crate in crates if crate is not main],
        "dependencies": [
            {"ref": reference(crate), "dependsOn": [reference(by_key[used]) for used in crate.uses]} for crate in crates
        ],
    }
    return (json.dumps(bom, indent=1, sort_keys=True) + "\n").encode()

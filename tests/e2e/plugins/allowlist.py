#!/usr/bin/env python3
"""A write-policy plug-in for strfry, written to its published protocol alone.

Only the keys in allowlist.json, beside this file, may post; shadow-rejects the word "spam".
"""

import json
import sys
from pathlib import Path

allowed = set(json.loads(Path(__file__).with_name("allowlist.json").read_text()))

for line in sys.stdin:
    req = json.loads(line)
    if req["type"] != "new":
        print("unexpected request type", file=sys.stderr)
        continue
    event = req["event"]
    res = {"id": event["id"], "action": "accept"}
    if event["pubkey"] not in allowed:
        res["action"], res["msg"] = "reject", "blocked: not on the list"
    elif "spam" in event["content"]:
        res["action"] = "shadowReject"
    print(json.dumps(res), flush=True)

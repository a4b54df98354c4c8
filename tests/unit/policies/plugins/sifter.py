"""A plug-in process that behaves as its first argument says; the real program of these tests.

It speaks the published protocol of strfry's write policies and knows nothing of Rookery.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def log_plugin(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


def decide(behaviour: str, question: dict[str, object], held: list[str]) -> None:
    event = question["event"]
    assert isinstance(event, dict)
    given, content = event["id"], event["content"]
    match behaviour:
        case "accept":
            log_plugin(id=given, action="accept")
        case "say":  # what the content asks for
            word, _, msg = content.partition(" ")
            log_plugin(id=given, action=word, msg=msg)
        case "no msg":
            log_plugin(id=given, action="reject")
        case "echo":  # tells what it was asked, without the event
            seen = {key: value for key, value in question.items() if key != "event"}
            log_plugin(id=given, action="reject", msg=json.dumps(seen, sort_keys=True))
        case "in pairs, backwards":
            held.append(given)
            if len(held) == 2:
                for each in reversed(held):
                    log_plugin(
                        id=each, action="accept" if each == given else "reject", msg="the first"
                    )
                held.clear()
        case "garbage":
            print("I like this one: " + content, flush=True)
        case "speak":
            print(f"looking at {content}")
            log_plugin(id=given, action="accept")
        case "no object":
            print('["accept"]', flush=True)
        case "no id":
            log_plugin(action="accept")
        case "no action":
            log_plugin(id=given)
        case "another word":
            log_plugin(id=given, action="ACCEPT")
        case "msg is a number":
            log_plugin(id=given, action="accept", msg=5)
        case "another event":
            log_plugin(id="0" * 64, action="accept")
        case "twice":
            log_plugin(id=given, action="accept")
            log_plugin(id=given, action="accept")
        case "hang":
            time.sleep(60)
        case "hang on":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what it starts ignores it too
            subprocess.run(["sleep", "60"], check=False)
        case "hang at bad":
            if content == "bad":
                time.sleep(60)
            log_plugin(id=given, action="accept")
        case "exit":
            sys.exit(3)
        case "exit at bad":
            if content == "bad":
                sys.exit(3)
            log_plugin(id=given, action="accept")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "answer and exit":
            log_plugin(id=given, action="accept")
            sys.exit(0)
        case "endless line":
            while True:
                print("x" * 4096, end="")
        case "endless lines":
            while True:
                print("accept")
        case "complain":
            print(f"a line\n\n{'x' * 1000}", file=sys.stderr, flush=True)
            log_plugin(id=given, action="accept")
        case "complain without end":
            while True:
                print("x" * 1000, file=sys.stderr)
        case "close":
            os.close(1)
            time.sleep(60)
        case "environment":
            log_plugin(id=given, action="reject", msg=os.environ.get(content, "not set"))
        case "who":
            log_plugin(id=given, action="reject", msg=str(os.getpid()))
        case "where":
            log_plugin(id=given, action="reject", msg=str(Path.cwd()))
        case "slow":
            time.sleep(0.2)
            log_plugin(id=given, action="accept")


def main() -> None:
    behaviour, held = sys.argv[1], []  # type: ignore[var-annotated]
    match behaviour:
        case "exit at once":
            sys.exit(4)
        case "speak":
            print("ready!\n", flush=True)
        case "start slowly":
            time.sleep(0.6)
            behaviour = "accept"
    for line in sys.stdin:
        question = json.loads(line)
        if question["type"] == "new":
            decide(behaviour, question, held)


if __name__ == "__main__":
    main()

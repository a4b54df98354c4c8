#!/usr/bin/env node
// A write-policy plug-in for strfry, written to its published protocol alone: two events for each
// address; decides in its own time, as plug-ins do that ask a service.
import { createInterface } from "node:readline";

const seen = new Map();

createInterface({ input: process.stdin, terminal: false }).on("line", async (line) => {
  const req = JSON.parse(line);
  if (req.type !== "new") return console.error("unexpected request type");
  await new Promise((done) => setTimeout(done, Math.random() * 20));
  const from = `${req.sourceType} ${req.sourceInfo}`;
  const count = (seen.get(from) ?? 0) + 1;
  seen.set(from, count);
  const res = { id: req.event.id, action: count > 2 ? "reject" : "accept" };
  if (count > 2) res.msg = `rate-limited: ${from} has posted ${count - 1} times`;
  console.log(JSON.stringify(res));
});

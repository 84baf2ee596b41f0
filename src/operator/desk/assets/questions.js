// The actions of an operator on a tunnel or target, and the question before each.

import { ask } from "./dialogs.js";
import { authority, bytes, count, duration, plural } from "./format.js";

let finished = () => {};

/** `done` gets a sentence, and the answer of the desk. */
export function onFinished(done) {
  finished = done;
}

/** The actions on a tunnel of a model. */
export function tunnelActions(model, row) {
  const isResumable = row.facts["tunnel.resumable"];
  return [
    { label: "Limit…", key: "l", run: () => limit(model, row) },
    ...(isResumable ? [{ label: "Move…", key: "m", run: () => move(model, row) }] : []),
    { label: "End…", key: "x", isDangerous: true, run: () => end(model, row) },
  ];
}

/** The actions on a target. */
export function targetActions(row) {
  const isCordoned = row.facts.is_cordoned || row.facts.cordoned_by?.length > 0;
  const actions = [{ label: isCordoned ? "Uncordon…" : "Cordon…", key: "c", run: () => cordon(row, !isCordoned) }];
  if (row.facts.tunnels) actions.push({ label: "End its tunnels…", key: "x", isDangerous: true, run: () => endAll(row) });
  return actions;
}

const REASON = { id: "reason", label: "Reason", hint: "It goes into the access log.", isRequired: true };
const READ_BY_USER = "A user of switchboard connect reads it in the terminal. It goes into the access log, too.";

function factsOf(model, row) {
  const { facts } = row;
  return [
    ["client", `${row.user ? `${row.user} · ` : ""}${authority(row.client, facts["client.port"])}`],
    ["target", row.target],
    ["age", duration(model.now() - row.since)],
    ["bytes", bytes(row.sent + row.received)],
    ["replica", row.replica],
  ];
}

function end(model, row) {
  ask({
    title: "End this tunnel?",
    text: row.facts["tunnel.resumable"]
      ? "The user is told the reason, and the session ends: this replica refuses it for ten minutes."
      : "The session in it ends at once, on both sides.",
    facts: factsOf(model, row),
    fields: [{ ...REASON, hint: READ_BY_USER }],
    confirm: "End the tunnel",
    isDangerous: true,
    send: ({ reason }) => ["POST", "/api/close", { replica: row.replica, tunnel_id: row.id, reason }],
    done: (answer) => finished(answer.closed.length ? "The tunnel is told to end." : "The tunnel had ended already.", answer),
  });
}

function move(model, row) {
  ask({
    title: "Move this session?",
    text: "Its tunnel ends, and the session goes on by another one, such as that of another replica.",
    facts: factsOf(model, row),
    fields: [REASON],
    confirm: "Move the session",
    send: ({ reason }) => ["POST", "/api/close", { replica: row.replica, tunnel_id: row.id, reason, move: true }],
    done: (answer) => finished(answer.closed.length ? "The session is told to move." : "The tunnel had ended already.", answer),
  });
}

function endAll(row) {
  ask({
    title: "End all tunnels of this target?",
    text: "The sessions in them end at once, at every replica that answers, resumable ones, too.",
    facts: [["target", row.name], ["tunnels", count(row.facts.tunnels)]],
    fields: [{ ...REASON, hint: READ_BY_USER }],
    confirm: `End ${plural(row.facts.tunnels, "tunnel")}`,
    isDangerous: true,
    send: ({ reason }) => ["POST", "/api/close-target", { target: row.key, reason }],
    done: (answer) => finished(`${plural(answer.closed.length, "tunnel")} told to end.`, answer),
  });
}

function limit(model, row) {
  const { download, upload } = row.facts;
  const options = ["unlimited", "default", "10MiB/s", "1MiB/s", "100KiB/s"];
  ask({
    title: "Limit this tunnel",
    text: "The rates hold until the tunnel ends. `default` is the target's rate again.",
    facts: factsOf(model, row),
    fields: [
      { id: "download", label: "To the client", value: download?.rate, options, hint: "Such as 1MiB/s." },
      { id: "upload", label: "From the client", value: upload?.rate, options },
    ],
    confirm: "Set the rates",
    send: (given) => {
      const changed = (name, now) => given[name] && given[name] !== now?.rate ? { [name]: given[name] } : {};
      const rates = { ...changed("download", download), ...changed("upload", upload) };
      return ["POST", "/api/limit", { replica: row.replica, tunnel_id: row.id, rates }];
    },
    done: (answer) => finished("The tunnel has these rates.", answer),
  });
}

function cordon(row, isCordoned) {
  ask({
    title: isCordoned ? "Cordon this target?" : "Uncordon this target?",
    text: isCordoned
      ? "It takes no new tunnels, at every replica that answers, until it is uncordoned or the replica restarts. Open tunnels go on."
      : "It takes new tunnels again, at every replica that answers.",
    facts: [["target", row.name], ["tunnels", count(row.facts.tunnels)]],
    fields: [],
    confirm: isCordoned ? "Cordon" : "Uncordon",
    send: () => ["POST", "/api/cordon", { target: row.key, is_cordoned: isCordoned }],
    done: (answer) => finished(`${row.name} is ${isCordoned ? "cordoned" : "uncordoned"}.`, answer),
  });
}

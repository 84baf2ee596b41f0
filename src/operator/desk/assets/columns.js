// The columns of the lists of tunnels and targets.

import { sparkline } from "./chart.js";
import { bytes, count, duration, rate } from "./format.js";

const idle = (row, now) => (row.isSilent ? Infinity : now - row.activeAt);

const quiet = (milliseconds) => (milliseconds < 3000 ? "now" : duration(milliseconds));

/** The columns of the tunnels. */
export function ofTunnels(model) {
  return [
    { id: "client", title: "Client", hint: true, value: (row) => `${row.user}\u0000${row.client}`,
      text: (row) => (row.user ? `${row.user} · ${row.client}` : row.client) },
    { id: "target", title: "Target", hint: true, value: (row) => row.target, text: (row) => row.target },
    { id: "down", title: "To client", isDown: true, value: (row) => row.down, text: (row) => rate(row.down) },
    { id: "up", title: "From client", isDown: true, value: (row) => row.up, text: (row) => rate(row.up) },
    { id: "spark", title: "Rates",
      draw: (canvas, row) => sparkline(canvas, row.history, model.tick) },
    { id: "bytes", title: "Bytes", isDown: true, value: (row) => row.sent + row.received,
      text: (row) => bytes(row.sent + row.received) },
    { id: "idle", title: "Idle", isDown: true, value: (row) => idle(row, model.now()),
      text: (row) => (row.isSilent ? "?" : quiet(model.now() - row.activeAt)) },
    { id: "age", title: "Age", isDown: true, value: (row) => -row.since, text: (row) => duration(model.now() - row.since) },
    { id: "node", title: "Node", hint: true, value: (row) => row.node, text: (row) => row.node },
    { id: "replica", title: "Replica", hint: true, value: (row) => row.replica,
      text: (row) => (row.isSilent ? `${model.short(row.replica)}: no answer` : model.short(row.replica)) },
  ];
}

/** The columns of the targets. */
export function ofTargets() {
  const ready = (row) => row.facts.endpoints_ready;
  return [
    { id: "name", title: "Target", hint: true, value: (row) => row.name, text: (row) => row.name },
    { id: "state", title: "State", value: (row) => state(row), text: (row) => state(row) },
    { id: "ready", title: "Ready", isDown: true, value: ready, text: (row) => `${ready(row)} of ${row.facts.endpoints}` },
    { id: "tunnels", title: "Tunnels", isDown: true, value: (row) => row.facts.tunnels, text: (row) => count(row.facts.tunnels) },
    { id: "addresses", title: "Endpoints", hint: true, text: (row) => row.addresses.join("  ") },
  ];
}

/** Returns how a target treats a new tunnel. */
export function state(row) {
  const { is_cordoned: cordoned, cordoned_by: by = [], endpoints_ready: ready } = row.facts;
  if (cordoned) return "cordoned";
  if (by.length) return `cordoned by ${by.length}`;
  return ready ? "open" : "no endpoint";
}

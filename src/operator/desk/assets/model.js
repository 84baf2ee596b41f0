// The state of all replicas as this page knows it. The desk answers with what has changed since the last answer.

import { shown, visible } from "./format.js";

/** Samples of a tunnel's rates, one an answer. */
const SAMPLES = 60;
/** Samples of the sum of all rates. */
const SUM_SAMPLES = 150;

const ring = (length) => new Float32Array(length).fill(NaN);

export class Model {
  generation = 0;
  tunnels = new Map();
  targets = [];
  replicas = [];
  refusals = { reasons: [], latest: [] };
  restrictions = [];
  /** The tunnels that have ended, the last one first. Null until the desk was asked for them, at `endedAt`. */
  ended = null;
  endedVersion = "";
  endedAt = 0;
  /** How many have ended since the desk began. */
  endedCount = 0;
  /** Events that the desk did not read in time. */
  missed = 0;
  started = 0;
  /** The desk's clock less this computer's, in milliseconds: a page may be open on another computer by a forwarded port. */
  offset = 0;
  tick = -1;
  sum = { down: ring(SUM_SAMPLES), up: ring(SUM_SAMPLES) };

  /** Applies an answer of the desk. */
  apply(state) {
    if (state.reset) this.tunnels.clear();
    this.generation = state.generation;
    this.started = state.started;
    this.offset = state.now - Date.now();
    this.replicas = state.replicas;
    this.targets = state.targets.map(targetRow);
    this.refusals = shown(state.refusals);
    this.restrictions = shown(state.restrictions);
    this.endedCount = state.ended;
    this.missed = state.missed;
    for (const key of state.gone) this.tunnels.delete(key);
    for (const tunnel of state.tunnels) this.learn(tunnel.key, shown(tunnel));
    this.sample();
  }

  learnEnded(rows, version) {
    this.ended = rows.map(shown).map((facts) => ({ ...names(facts), facts }));
    this.endedVersion = version;
    this.endedAt = Date.now();
  }

  /** The desk's time. */
  now() {
    return Date.now() + this.offset;
  }

  /** A replica's name without the beginning that all names of replicas share. */
  short(name) {
    if (this.replicas.length < 2) return name;
    const first = this.replicas[0].name;
    let length = 0;
    while (length < first.length && this.replicas.every((replica) => replica.name[length] === first[length])) length += 1;
    const common = Math.max(first.lastIndexOf("-", length - 1), first.lastIndexOf(":", length - 1)) + 1;
    return name.slice(common);
  }

  learn(key, facts) {
    const row = this.tunnels.get(key) ?? { key, history: null };
    Object.assign(row, names(facts), {
      facts, activeAt: facts.active_at, sent: facts.bytes_sent, received: facts.bytes_received,
      down: facts.sent_per_second, up: facts.received_per_second,
    });
    this.tunnels.set(key, row);
  }

  /** Adds the rates of now to their history. */
  sample() {
    this.tick += 1;
    const silent = new Set(this.replicas.filter((replica) => replica.error).map((replica) => replica.name));
    let [down, up] = [0, 0];
    for (const row of this.tunnels.values()) {
      row.isSilent = silent.has(row.replica);
      if (row.isSilent) row.down = row.up = 0;
      // A tunnel that has never moved a byte since it was seen needs no history.
      if (!row.history && (row.down || row.up)) row.history = { down: ring(SAMPLES), up: ring(SAMPLES) };
      if (row.history) {
        row.history.down[this.tick % SAMPLES] = row.down;
        row.history.up[this.tick % SAMPLES] = row.up;
      }
      down += row.down;
      up += row.up;
    }
    this.sum.down[this.tick % SUM_SAMPLES] = down;
    this.sum.up[this.tick % SUM_SAMPLES] = up;
    this.total = { down, up };
  }
}

function names(facts) {
  const client = facts["client.address"] ?? "";
  const user = facts["user.name"] ?? "";
  const target = `${facts["target.namespace"] ?? ""}/${facts["target.service"] ?? ""}`;
  const node = facts["upstream.node"] ?? facts.node ?? "";
  const name = facts["server.address"] ?? "";
  const search = [user, client, target, name, node, facts.replica, facts.tunnel_id, facts["client.software"], facts["upstream.software"]];
  return {
    id: facts.tunnel_id, replica: facts.replica, client, user, target, node, since: Date.parse(facts.since),
    search: search.join(" ").toLowerCase(),
  };
}

function targetRow(facts) {
  const name = `${facts["target.namespace"]}/${facts["target.service"]}`;
  const addresses = facts.addresses ?? [];
  return { key: name, name: visible(name), facts, addresses, search: [name, ...addresses].join(" ").toLowerCase() };
}

/** Those rows that hold every word of a search, in an order. */
export function select(rows, words, sort) {
  const found = [];
  for (const row of rows) if (words.every((word) => row.search.includes(word))) found.push(row);
  const { value, isDown } = sort;
  const sign = isDown ? -1 : 1;
  const keyed = found.map((row) => [value(row), row]);
  keyed.sort(([one, first], [other, second]) => {
    if (one < other) return -sign;
    if (one > other) return sign;
    return first.key < second.key ? -1 : 1;
  });
  return keyed.map(([, row]) => row);
}

/** The words of a search. */
export function words(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

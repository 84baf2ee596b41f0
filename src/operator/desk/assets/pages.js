// The refusals, the replicas, and the tunnels that have ended.

import { bytes, clock, count, duration, plural } from "./format.js";

const at = (id) => document.getElementById(id);

/** Makes the children of a place as many as the items, and fills each. */
function fill(place, items, make, write) {
  while (place.children.length > items.length) place.lastElementChild.remove();
  while (place.children.length < items.length) place.append(make());
  items.forEach((item, index) => write(place.children[index], item));
}

function put(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/** Shows a sentence, and its code small. A replica of an older version has no sentence. */
function explain(place, sentence, code) {
  const text = sentence || code;
  if (place.firstChild?.data === `${text} ` && place.lastChild.textContent === code) return;
  place.replaceChildren(`${text} `, Object.assign(document.createElement("small"), { textContent: text === code ? "" : code }));
}

/** Makes rows whose cells have these classes. */
function tableRow(classes) {
  return () => {
    const row = document.createElement("tr");
    for (const name of classes) row.insertCell().className = name;
    return row;
  };
}

/** Shows the refusals. */
export function refusals({ refusals: told }, words) {
  const has = (text) => words.every((word) => text.toLowerCase().includes(word));
  const reasons = told.reasons.filter(({ reason, sentence }) => has(`${sentence} ${reason}`));
  fill(at("refusal-reasons").tBodies[0], reasons, tableRow(["", "number", ""]), (row, one) => {
    const [reason, number, last] = row.cells;
    explain(reason, one.sentence, one.reason);
    put(number, count(one.count));
    put(last, clock(one.last));
  });
  const latest = told.latest.filter((one) => has([one.sentence, one.reason, one["client.address"], userOf(one), one.authority, one.replica].join(" ")));
  fill(at("refusal-latest").tBodies[0], latest, tableRow(["when", "why", "who", "what", ""]), (row, one) => {
    const client = userOf(one) ? `${userOf(one)} · ${one["client.address"]}` : one["client.address"];
    const others = one.others ? ` (and ${count(one.others)} others of its network)` : "";
    const sentence = one["authorization.reason"] || one.sentence || one.reason;
    const [when, why, ...further] = row.cells;
    put(when, clock(one.at));
    explain(why, `${sentence}${one.count > 1 ? ` × ${count(one.count)}` : ""}${others}`, one.reason);
    [client, one.authority || "–", one.replica].forEach((text, index) => put(further[index], text ?? ""));
  });
  at("refusal-reasons").hidden = !told.reasons.length;
  for (const id of ["refusals-recent", "refusal-latest"]) at(id).hidden = !told.latest.length;
  at("empty-refusals").hidden = told.reasons.length > 0;
}

/** The user of a refused request; with a question mark, one whose password was not accepted. */
function userOf(refused) {
  return refused["auth.claimed_user"] ? `${refused["auth.claimed_user"]}?` : refused["user.name"];
}

const PHASES = {
  serving: "serves",
  not_ready: "drains: not ready any more, still accepting",
  closing_listeners: "drains: its ports are closing",
  draining: "drains: takes no new tunnels",
  closing: "drains: closes the tunnels that are left",
  terminated: "drained",
};
/** The most tunnels that each draining replica was seen with, by its name. */
const before = new Map();

function replicaItem() {
  const item = document.createElement("li");
  for (const kind of ["name", "state", "left"]) {
    item.append(Object.assign(document.createElement("span"), { className: kind }));
  }
  const progress = document.createElement("progress");
  progress.hidden = true;
  item.append(progress);
  return item;
}

/** Shows the replicas, and how far each has drained. */
export function replicas(list) {
  fill(at("replica-list"), list, replicaItem, (item, one) => {
    const [name, state, left, progress] = item.children;
    item.className = kindOf(one);
    put(name, one.name);
    put(state, one.error ? `does not answer: ${one.error}` : PHASES[one.phase] ?? (one.phase || "…"));
    const seen = one.answered ? `; last answer at ${clock(one.answered)}` : "";
    const resumable = one.resumable ? `, ${count(one.resumable)} of them resumable` : "";
    put(left, one.error ? `${plural(one.tunnels ?? 0, "tunnel")} then${seen}` : `${plural(one.tunnels, "tunnel")}${resumable}, ${plural(one.connections, "connection")}`);
    const isDraining = kindOf(one) === "draining";
    if (!isDraining) before.delete(one.name);
    else before.set(one.name, Math.max(before.get(one.name) ?? 1, one.tunnels));
    progress.hidden = !isDraining;
    if (isDraining) {
      progress.max = before.get(one.name);
      progress.value = progress.max - one.tunnels;
      progress.setAttribute("aria-label", `${one.name}: drained, ${plural(one.tunnels, "tunnel")} left`);
    }
  });
}

/** Shows the limits and blocks of users, clients and targets. */
export function restrictions(list) {
  for (const id of ["restrictions-title", "restrictions"]) at(id).hidden = !list.length;
  fill(at("restrictions").tBodies[0], list, tableRow(["who", "what", "when", "much", "why", ""]), (row, one) => {
    const of = [["user", one["user.name"]], ["client", one["client.address"]], ["target", one.target]];
    const rates = [["download", one.download], ["upload", one.upload]];
    const words = (pairs) => pairs.filter(([, text]) => text).map((pair) => pair.join(" ")).join(", ");
    const effect = one.kind === "block" ? "no new tunnels" : words(rates);
    const cells = [words(of), effect, duration(one.left_ms), plural(one.tunnels, "tunnel"), one.reason, one.replica];
    cells.forEach((text, index) => put(row.cells[index], text ?? ""));
  });
}

/** Shows the tunnels that have ended, and why. */
export function ended({ ended: told, endedCount, missed, replicas: list }, words) {
  const notes = list.filter(({ deaf }) => deaf).map(({ name, deaf }) => `The ends of ${name} are not listed now: ${deaf}.`);
  if (missed) notes.push(`${plural(missed, "event")} came too fast for the desk: some ends may be missing here.`);
  at("ended-note").hidden = !notes.length;
  put(at("ended-note"), notes.join("\n"));
  const has = ({ search, facts }) => words.every((word) => `${search} ${why(facts)} ${facts.reason}`.toLowerCase().includes(word));
  const found = (told ?? []).filter(has);
  fill(at("ended-latest").tBodies[0], found, tableRow(["when", "why", "who", "what", "much", ""]), (row, { client, user, target, replica, facts }) => {
    const moved = (Number(facts.bytes_sent) || 0) + (Number(facts.bytes_received) || 0);
    const lasted = `${duration(Number(facts.age_ms) || 0)} · ${bytes(moved)}`;
    const [when, reason, ...further] = row.cells;
    put(when, clock(facts.at));
    explain(reason, why(facts), facts.reason);
    [user ? `${user} · ${client}` : client, target, lasted, replica].forEach((text, index) => put(further[index], text ?? ""));
  });
  at("ended-latest").hidden = !found.length;
  at("empty-ended").hidden = !told || found.length > 0;
  put(at("empty-ended"), told?.length ? "Nothing matches the search." : endedCount ? "No tunnel has ended in the last hour." : "No tunnel has ended.");
}

/** The reason of an end in words, with an operator's own. */
function why(facts) {
  const words = facts["operator.reason"];
  return `${facts.sentence || facts.reason}${words ? `: ${words}` : ""}`;
}

/** `ok`, `draining` or `silent`. */
export function kindOf(replica) {
  if (replica.error) return "silent";
  return ["serving", ""].includes(replica.phase) ? "ok" : "draining";
}

// The page: asks the desk for what has changed, shows it, and turns keys and clicks into questions.

import { Refused, call } from "./api.js";
import { chart } from "./chart.js";
import { ofTargets, ofTunnels } from "./columns.js";
import { Details } from "./details.js";
import { help, isAsking } from "./dialogs.js";
import { count, plural, rate } from "./format.js";
import { Grid } from "./grid.js";
import { Model, select, words } from "./model.js";
import { ended, kindOf, refusals, replicas, restrictions } from "./pages.js";
import { onFinished, targetActions, tunnelActions } from "./questions.js";

const at = (id) => document.getElementById(id);
const VIEWS = ["tunnels", "targets", "refusals", "replicas", "ended"];
const INTERVAL = 1000;

const model = new Model();
let view = "tunnels";
let timer = 0;
let isPolling = false;

const grids = {
  tunnels: new Grid(at("grid-tunnels"), {
    columns: ofTunnels(model),
    sort: { id: "age", value: (row) => -row.since, isDown: true },
    onOpen: (row) => details.open("tunnel", row),
    onSort: () => showTunnels(),
    onActive: (row) => follow("tunnel", row),
    decorate: (place, row) => place.classList.toggle("silent", row.isSilent),
  }),
  targets: new Grid(at("grid-targets"), {
    columns: ofTargets(),
    sort: { id: "name", value: (row) => row.name, isDown: false },
    onOpen: (row) => details.open("target", row),
    onSort: () => showTargets(),
    onActive: (row) => follow("target", row),
    decorate: (place, row) => place.classList.toggle("cordoned", Boolean(row.facts.is_cordoned || row.facts.cordoned_by?.length)),
  }),
};
const details = new Details({
  model,
  actions: (kind, row) => (kind === "tunnel"
    ? [{ label: "Why slow?", run: () => details.diagnose(row) }, ...tunnelActions(model, row)]
    : targetActions(row)),
  onClose: () => grids[view]?.root.focus({ preventScroll: true }),
});
onFinished(finished);

/** Open details follow the active row. */
function follow(kind, row) {
  if (details.shown && row) details.open(kind, row);
}

function finished(text, { faults = [] }) {
  const failed = faults.map(({ replica, error }) => `${replica}: ${error}`).join("; ");
  say(failed ? `${text} But ${failed}` : text);
  if (failed) warn(`${text} But ${failed}`, true);
  poll();
}

/** Has screen readers say a text, politely. */
function say(text) {
  at("said").textContent = text;
}

let passing = false;
function warn(text, isPassing = false) {
  passing = isPassing;
  if (at("banner").textContent !== text) at("banner").textContent = text;
  at("banner").hidden = !text;
  if (isPassing) setTimeout(() => passing && warn(""), 15_000);
}

function showTunnels() {
  const { sort } = grids.tunnels;
  const found = select(model.tunnels.values(), words(at("search").value), sort);
  grids.tunnels.show(found);
  at("sorting").value = sort.id;
  empty("tunnels", found, model.tunnels.size, "No tunnel is open.");
  matches(found.length, model.tunnels.size, "tunnel");
}

function showTargets() {
  const found = select(model.targets, words(at("search").value), grids.targets.sort);
  grids.targets.show(found);
  empty("targets", found, model.targets.length, "The allowlist is empty.");
  matches(found.length, model.targets.length, "target");
}

function empty(name, found, all, text) {
  at(`empty-${name}`).hidden = found.length > 0;
  at(`empty-${name}`).textContent = all ? "Nothing matches the search." : text;
}

function matches(found, all, noun) {
  const text = at("search").value.trim() ? `${count(found)} of ${plural(all, noun)} ${found === 1 ? "matches" : "match"}` : "";
  if (at("matches").textContent !== text) at("matches").textContent = text;
}

function show() {
  if (model.tick < 0) return;
  const silent = model.replicas.filter((replica) => replica.error);
  const draining = model.replicas.filter((replica) => kindOf(replica) === "draining");
  at("count-tunnels").textContent = count(model.tunnels.size);
  at("count-targets").textContent = count(model.targets.length);
  at("count-refusals").textContent = count(model.refusals.reasons.reduce((sum, one) => sum + one.count, 0));
  at("count-ended").textContent = count(model.endedCount);
  at("count-replicas").textContent = silent.length ? `${model.replicas.length - silent.length}/${model.replicas.length}` : count(model.replicas.length);
  at("count-replicas").className = silent.length ? "bad" : draining.length ? "draining" : "";
  at("sum-tunnels").textContent = count(model.tunnels.size);
  at("sum-down").textContent = model.total.down ? rate(model.total.down) : "0";
  at("sum-up").textContent = model.total.up ? rate(model.total.up) : "0";
  chart(at("sum-chart"), model.sum, model.tick, (most) => (most ? rate(most) : ""));
  if (view === "tunnels") showTunnels();
  else if (view === "targets") showTargets();
  else at("matches").textContent = "";
  if (view === "refusals") refusals(model, words(at("search").value));
  if (view === "replicas") {
    replicas(model.replicas);
    restrictions(model.restrictions);
  }
  if (view === "ended") ended(model, words(at("search").value));
  details.update();
}

let silentBefore = "";
function tellOfSilent() {
  const names = model.replicas.filter((replica) => replica.error).map((replica) => replica.name);
  if (names.join() !== silentBefore) {
    if (names.length) say(`No answer from ${names.join(", ")}`);
    else if (silentBefore) say("All replicas answer again");
  }
  silentBefore = names.join();
  if (passing) return;
  const what = names.length === 1 ? `Replica ${names[0]} does not answer` : `${names.length} replicas do not answer: ${names.join(", ")}`;
  const whose = names.length === 1 ? "Its" : "Their";
  warn(names.length ? `${what}. ${whose} tunnels are shown as they were last seen.` : model.fault ?? "");
}

/** Asks for what has changed, and again a while after the answer. */
async function poll() {
  if (isPolling) return;
  isPolling = true;
  clearTimeout(timer);
  let wait = INTERVAL;
  try {
    const state = await call("GET", `/api/state?since=${model.generation}`);
    model.fault = state.fault;
    model.apply(state);
    document.body.dataset.answers = model.tick + 1;
    tellOfSilent();
    show();
    if (view === "ended") await askEnded();
    await details.ask();
  } catch (error) {
    passing = false;
    if (error instanceof Refused && error.status === 403) {
      warn("This page has no valid secret. Open the address that `switchboard desk` has printed.");
      wait = Infinity;
    } else {
      warn(`The desk does not answer: is \`switchboard desk\` still running? (${error.message})`);
      model.generation = 0;
      wait = 3 * INTERVAL;
    }
  }
  isPolling = false;
  if (Number.isFinite(wait) && !document.hidden) timer = setTimeout(poll, wait);
}

/** Asks for the ended tunnels if there are new ones, or a minute after the last time: the desk drops them after an hour. */
async function askEnded() {
  const version = `${model.started}/${model.endedCount}`;
  if (version === model.endedVersion && Date.now() - model.endedAt < 60_000) return;
  model.learnEnded(await call("GET", "/api/ended"), version);
  show();
}

function open(name) {
  if (!VIEWS.includes(name)) return;
  view = name;
  details.shown = null;
  at("details").hidden = true;
  for (const other of VIEWS) at(`view-${other}`).hidden = other !== name;
  for (const button of document.querySelectorAll("[data-view]")) {
    if (button.dataset.view === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  if (model.tick >= 0) show();
  if (name === "ended") poll();
}

function act(key) {
  const grid = grids[view];
  const row = grid?.row();
  if (!row || row.isSilent) return;
  const actions = view === "tunnels" ? tunnelActions(model, row) : targetActions(row);
  actions.find((action) => action.key === key)?.run();
}

function escape() {
  if (details.shown) details.close();
  else if (at("search").value) {
    at("search").value = "";
    show();
  } else at("search").blur();
}

/** Moves to another row, and the focus into the list, where Enter opens the row. */
function step(steps) {
  grids[view]?.root.focus({ preventScroll: true });
  grids[view]?.move(steps);
}

const KEYS = {
  "/": () => { at("search").focus(); at("search").select(); },
  j: () => step(1),
  k: () => step(-1),
  "?": help,
  x: () => act("x"),
  m: () => act("m"),
  l: () => act("l"),
  c: () => act("c"),
  1: () => open("tunnels"),
  2: () => open("targets"),
  3: () => open("refusals"),
  4: () => open("replicas"),
  5: () => open("ended"),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || isAsking()) return;
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key === "Escape") escape();
  else if (!isTyping && KEYS[event.key]) KEYS[event.key]();
  else if (isTyping && event.key === "Enter") grids[view]?.root.focus();
  else return;
  event.preventDefault();
});

/** The timer that has the matches said when typing pauses; they are shown at once. */
let typing = 0;
at("search").addEventListener("input", () => {
  if (model.tick < 0) return;
  show();
  clearTimeout(typing);
  typing = setTimeout(() => say(at("matches").textContent), 700);
});
for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => open(button.dataset.view));
for (const { id, title, value } of grids.tunnels.columns) if (value) at("sorting").append(new Option(title, id));
at("sorting").value = "age";
at("sorting").addEventListener("change", () => grids.tunnels.sortBy(at("sorting").value));
document.addEventListener("visibilitychange", () => !document.hidden && poll());
addEventListener("hashchange", poll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => model.tick >= 0 && show());
poll();

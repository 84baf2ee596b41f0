// Rates over time, drawn on canvases in the colours of the page.

let colours = null;

/** The colours of the theme; read again when the theme changes. */
function theme() {
  if (!colours) {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    colours = { down: of("--down"), up: of("--up"), line: of("--line"), text: of("--muted") };
  }
  return colours;
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours = null; });

/** The sizes of canvases: reading one makes the browser lay the page out, too much for each row of each update. */
let sizes = new WeakMap();

/** Forgets the sizes, since they have changed. */
export function forgetSizes() {
  sizes = new WeakMap();
}
addEventListener("resize", forgetSizes);

/** Prepares a canvas for its size on the screen. Returns `null` if it is not shown. */
function prepare(canvas) {
  const size = sizes.get(canvas) ?? { width: canvas.clientWidth, height: canvas.clientHeight };
  const { width, height } = size;
  if (!width || !height) return null;
  sizes.set(canvas, size);
  const scale = Math.min(devicePixelRatio || 1, 3);
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/** The points of a ring, the oldest first; NaN where there was none yet. */
function* points(ring, tick) {
  for (let index = 1; index <= ring.length; index += 1) yield ring[(tick + index) % ring.length];
}

function path(pen, ring, tick, most, area) {
  const step = area.width / Math.max(1, ring.length - 1);
  let x = area.left;
  let began = false;
  pen.beginPath();
  for (const value of points(ring, tick)) {
    if (!Number.isNaN(value)) {
      const y = area.bottom - (Math.min(value, most) / most) * area.height;
      if (began) pen.lineTo(x, y);
      else pen.moveTo(x, y);
      began = true;
    }
    x += step;
  }
  return x - step;
}

function line(pen, ring, tick, most, area, colour, fill) {
  const last = path(pen, ring, tick, most, area);
  pen.strokeStyle = colour;
  pen.lineWidth = 1.25;
  pen.lineJoin = "round";
  pen.stroke();
  if (fill) {
    const first = area.left + [...points(ring, tick)].findIndex((value) => !Number.isNaN(value)) * (area.width / (ring.length - 1));
    pen.lineTo(last, area.bottom);
    pen.lineTo(first, area.bottom);
    pen.closePath();
    pen.globalAlpha = 0.14;
    pen.fillStyle = colour;
    pen.fill();
    pen.globalAlpha = 1;
  }
}

function largest(...rings) {
  let most = 0;
  for (const ring of rings) for (const value of ring) if (value > most) most = value;
  return most;
}

/** Canvases of rows with something on them. */
const marked = new WeakSet();

/** Draws both directions of a tunnel in its row, each row by its own scale. `history` is `null` before the first traffic. */
export function sparkline(canvas, history, tick) {
  if (!history && !marked.delete(canvas)) return;
  const drawn = prepare(canvas);
  if (!drawn) return;
  const { pen, width, height } = drawn;
  const most = history ? largest(history.down, history.up) : 0;
  const area = { left: 0, width, bottom: height - 1.5, height: height - 4 };
  if (!most) return;
  marked.add(canvas);
  pen.fillStyle = theme().line;
  pen.fillRect(0, height - 1, width, 1);
  line(pen, history.up, tick, most, area, theme().up, false);
  line(pen, history.down, tick, most, area, theme().down, true);
}

/** The values that a ring has so far, the oldest first. */
function known(ring, tick) {
  const values = [...points(ring, tick)];
  const first = values.findIndex((value) => !Number.isNaN(value));
  return first < 0 ? [] : values.slice(first);
}

/** Draws what is known over the whole width, with a scale: `label` makes the text at its top. */
export function chart(canvas, history, tick, label) {
  const drawn = prepare(canvas);
  if (!drawn) return;
  const { pen, width, height } = drawn;
  const [down, up] = [known(history.down, tick), known(history.up, tick)];
  const most = largest(down, up);
  const area = { left: 0, width, bottom: height - 2, height: height - 16 };
  pen.fillStyle = theme().line;
  pen.fillRect(0, height - 1, width, 1);
  pen.fillRect(0, area.bottom - area.height, width, 1);
  if (most) {
    line(pen, up, up.length - 1, most, area, theme().up, false);
    line(pen, down, down.length - 1, most, area, theme().down, true);
  }
  pen.fillStyle = theme().text;
  pen.font = "11px system-ui, sans-serif";
  pen.fillText(label(most), 2, area.bottom - area.height - 4);
}

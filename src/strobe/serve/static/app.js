// The page: wires the stream to what a person sees and does.

import { Player } from "./player.js";
import { Timeline, draw } from "./timeline.js";
import { Strip, drawCache } from "./strip.js";

const $ = (id) => document.getElementById(id);
// `accepted` is the prompt that holds, `asked` the one that was sent last, `refused` one that the model does not understand.
const show = { welcome: null, cache: null, rtf: null, dirty: true, prompting: new Map(), accepted: "", asked: "", refused: null, words: [], kinds: new Map(), rows: 0 };
const OF_A_SHAPE = ["colour", "shape"]; // the kinds of words that each shape of a prompt has its own of
const MODES = { recache: "hard cut", soft: "drift", interpolate: "blend", shot: "new shot" };
const timeline = new Timeline($("timeline"));
const strip = new Strip($("strip"), $("strip-legend"));
let second = null;
let skewMs = Infinity; // least time from a picture's making to its arrival: the two clocks' difference, and the shortest way

function say(text, kind = "") {
  $("prompt-said").textContent = text;
  $("prompt-said").dataset.kind = kind;
}

const alone = () => say("there is no connection to the server now; ask again once there is", "error");
const tell = (message) => (player.socket?.readyState === WebSocket.OPEN ? player.say(message) : alone());

function state(kind, text) {
  $("state").dataset.state = kind;
  $("state-text").textContent = text;
}

function veil(title, text, { progress = null, actions = [], login = false } = {}) {
  $("veil").hidden = title === null;
  if (title === null) return;
  $("veil-title").textContent = title;
  $("veil-text").textContent = text;
  $("veil-progress").hidden = progress === null;
  if (progress !== null) $("veil-progress").value = progress;
  $("login").hidden = !login;
  $("veil-actions").replaceChildren(...actions.map(([label, act]) => button(label, act)));
}

function button(label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.addEventListener("click", act);
  return made;
}

const player = new Player($("picture"), {
  welcome(message) {
    if (message.stream !== show.welcome?.stream) {
      $("branches").replaceChildren(); // they went with the stream before
      timeline.branches = [];
      if ($("record").getAttribute("aria-pressed") === "true") this.recorded({ on: false, why: "the recording went with its stream" });
    }
    show.welcome = message;
    show.accepted = message.prompt;
    veil(null);
    const { model, preset, width, height, fps, seed } = message;
    $("facts").textContent = `${model} · ${preset} · ${height}×${width} at ${fps} FPS · seed ${seed} · ${message.codec}`;
    $("caption-a").textContent = message.prompt;
    $("prompt").value = $("prompt").value || message.prompt;
    $("seed").value = seed;
    options($("preset"), message.presets.map((each) => [each.name, offer(each, message)]), preset);
    const modes = Object.keys(message.modes);
    options($("mode"), modes.map((name) => [name, MODES[name] ? `${MODES[name]} (${name})` : name]), modes[0]);
    for (const option of $("mode").options) option.title = message.modes[option.value];
    const example = message.examples.find((text) => text !== message.prompt) ?? "";
    $("prompt").placeholder = example && `for example: ${example}`;
    $("model-note").hidden = message.model !== "shapes";
    if (message.guide) $("guide").href = message.guide;
    words(message);
    gallery(message);
    fit();
    timeline.reset(message.prompt, message.resumed_at_frame);
    strip.clear();
    skewMs = Infinity;
    state("live", "live");
    if (message.note) say(message.note);
  },
  first(ms) {
    $("f-first").textContent = `${Math.round(ms)} ms`;
    document.body.dataset.first = "1";
  },
  prompted(message) {
    show.prompting.set(message.epoch, message.typed_ms);
    show.accepted = message.text;
    show.refused = null;
    timeline.typed(message.epoch, message.text);
    const when = message.frame_block === null ? "once its text is encoded" : `at frame block ${message.frame_block}`;
    say(`"${message.text}" takes effect ${when}`);
  },
  effective(message) {
    timeline.effective(message.epoch, message.frame);
  },
  made(message) {
    strip.add(message);
    show.cache = message.cache;
    show.rtf = message.real_time_factor;
    show.dirty = true;
  },
  flushed(message) {
    show.accepted = message.prompt;
    Object.assign(show.welcome, { preset: message.preset, seed: message.seed });
    timeline.reset(message.prompt, message.frame);
    strip.clear();
    $("caption-a").textContent = message.prompt;
    $("facts").textContent = $("facts").textContent.replace(/· .+? ·(.*)seed \d+/, `· ${message.preset} ·$1seed ${message.seed}`);
    say(message.why === "reset" ? "began again" : `back at ${message.why}`);
  },
  marked(message) {
    const thumb = document.createElement("canvas");
    thumb.width = thumb.height = 96;
    thumb.setAttribute("role", "img");
    thumb.setAttribute("aria-label", `picture of ${message.name}`);
    const { width, height } = $("picture");
    const side = Math.min(width, height);
    thumb.getContext("2d").drawImage($("picture"), (width - side) / 2, (height - side) / 2, side, side, 0, 0, 96, 96);
    const item = document.createElement("li");
    const what = document.createElement("span");
    what.className = "what";
    const where = document.createElement("small");
    where.textContent = `frame block ${message.frame_block}`;
    what.append(message.name, where);
    const go = button("Go back", () => tell({ type: "go", branch: message.branch }));
    const beside = button("Beside", () => tell({ type: "fork", branch: message.branch }));
    go.setAttribute("aria-label", `Go back to ${message.name}`);
    beside.setAttribute("aria-label", `Show ${message.name} beside this stream`);
    item.append(thumb, what, go, beside);
    $("branches").append(item);
    timeline.branches.push(message);
    say(`kept "${message.name}"`);
  },
  forked(message) {
    openSecond(message.secret);
  },
  recorded(message) {
    $("record").setAttribute("aria-pressed", String(message.on));
    $("record").textContent = message.on ? "Stop recording" : "Record";
    $("download").hidden = !message.download;
    if (message.download) {
      $("download").href = `.${message.download}`; // beside this page, wherever a proxy has put it
      const what = `${message.frames} frames are ready to download`;
      if (message.why) say(`${message.why}; its first ${what}`, "error");
      else say(`recorded: ${what}`);
    } else if (!message.on) say(message.why || "nothing was recorded: no frame was made meanwhile", message.why ? "error" : "");
  },
  recipe(message) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(message, null, 2)], { type: "application/json" }));
    link.download = "strobe-recipe.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    say("strobe generate --replay strobe-recipe.json makes this stream again");
  },
  state(message) {
    const playing = message.state === "playing";
    $("play").setAttribute("aria-pressed", String(playing));
    $("play-text").textContent = playing ? "Pause" : "Play";
    $("play").querySelector(".glyph").dataset.glyph = playing ? "pause" : "play";
    state(playing ? "live" : message.state, playing ? "live" : message.state);
  },
  error(message) {
    if (show.asked) show.refused = show.asked;
    show.asked = "";
    say(message.message, "error");
  },
  refused(message) {
    const fits = message.fits.map((name) => [`Use ${name}`, () => retry({ preset: name })]);
    const without = player.options.image ? [["Without the start image", () => retry({ prompt: show.accepted, image: "" })]] : [];
    veil("Not now", message.reason, { actions: [...fits, ...without, ["Try again", () => retry({})]] });
    state("lost", "refused");
  },
  ended(message) {
    say(message.reason, "error");
    state("lost", "ended");
  },
  gone() {
    const { preset, seed } = show.welcome;
    Object.assign(player.options, { prompt: show.accepted, preset, seed });
    say("the server has this stream no more; it begins again under the same prompt", "error");
  },
  lost(tries) {
    state("lost", "connection lost, trying again");
    if (tries > 0) explain();
  },
  stall(now) {
    if (player.tries === 0) state(now ? "stalled" : "live", now ? "waiting for frames" : "live");
  },
  paint(meta) {
    skewMs = Math.min(skewMs, meta.arrivedMs - meta.madeMs);
    strip.paint(meta, skewMs > 0 ? 0 : skewMs);
    timeline.frame = meta.frame;
    const typed = show.prompting.get(meta.epoch);
    if (typed !== undefined) {
      show.prompting.delete(meta.epoch);
      const ms = performance.now() - typed;
      timeline.seen(meta.epoch, meta.frame, ms);
      $("f-prompt").textContent = `${Math.round(ms)} ms`;
      document.body.dataset.epoch = String(meta.epoch);
      const prompt = timeline.at(meta.epoch);
      if (prompt) {
        $("caption-a").textContent = prompt.text;
        say(`seen after ${Math.round(ms)} ms`);
      }
    }
  },
});

function retry(options) {
  player.closed = false;
  requestAnimationFrame(player.tick);
  veil("Connecting", "");
  player.open(options);
}

function offer(each, { fps, block_frames: frames }) {
  const rate = `${((1000 * frames) / each.block_ms).toFixed(0)} FPS`;
  const memory = each.stream_bytes > 2 ** 27 ? `, ${(each.stream_bytes / 2 ** 30).toFixed(1)} GiB` : "";
  return `${each.name}: ${each.measured ? rate : `about ${rate}`}${memory}`;
}

function options(select, entries, chosen) {
  select.replaceChildren(
    ...entries.map(([value, label]) => {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = label;
      option.selected = value === chosen;
      return option;
    }),
  );
}

function words(message) {
  show.words = Object.entries(message.words);
  show.kinds = new Map(show.words.flatMap(([kind, list]) => list.map((word) => [word, kind])));
  show.rows = 0;
  mark();
}

// The words of a kind in a prompt, with their places.
function said(text, kind) {
  return [...text.matchAll(/[\w'-]+/g)].filter(([word]) => show.kinds.get(word.toLowerCase()) === kind);
}

// A row of buttons for each kind; of two shapes, each has rows for what it alone has.
function rows(shapes) {
  const own = show.words.filter(([kind]) => OF_A_SHAPE.includes(kind));
  const shared = show.words.filter(([kind]) => !OF_A_SHAPE.includes(kind));
  const whose = shapes > 1 ? ["first ", "second "] : [""];
  const all = [...whose.flatMap((which, at) => own.map(([kind, list]) => [which + kind, kind, list, at])), ...shared.map(([kind, list]) => [kind, kind, list, 0])];
  $("words").replaceChildren(
    ...all.map(([name, kind, list, at]) => {
      const row = document.createElement("div");
      row.className = "kind";
      row.setAttribute("role", "group");
      row.setAttribute("aria-label", name);
      const label = document.createElement("span");
      label.textContent = name;
      row.append(label, ...list.map((word) => wordButton(word, kind, at)));
      return row;
    }),
  );
}

function wordButton(word, kind, at) {
  const made = button(word, () => {
    const now = $("prompt").value.trim();
    const text = now === show.refused ? show.accepted : now; // a refused prompt gives way
    const found = said(text, kind);
    const places = OF_A_SHAPE.includes(kind) ? found.slice(at, at + 1) : found;
    const put = (whole, { 0: old, index }) => whole.slice(0, index) + word + whole.slice(index + old.length);
    $("prompt").value = places.length ? places.reduceRight(put, text) : `${text} ${kind === "background" ? "on " : ""}${word}`.trim();
    mark();
    steer($("prompt").value);
  });
  Object.assign(made.dataset, { word, kind, at });
  return made;
}

// Shows which words the prompt has; a second shape in it brings rows of its own.
function mark() {
  const text = $("prompt").value;
  const shapes = Math.min(2, Math.max(1, said(text, "shape").length));
  if (shapes !== show.rows) rows(shapes);
  show.rows = shapes;
  for (const made of $("words").querySelectorAll("[data-word]")) {
    const { word, kind, at } = made.dataset;
    made.setAttribute("aria-pressed", String(said(text, kind)[at]?.[0].toLowerCase() === word));
  }
}

// Three prompts that a click starts; those of the bundled model with a picture of the shape.
function gallery(message) {
  const known = new Set(Object.values(message.words).flat());
  $("gallery").replaceChildren(
    ...message.examples.slice(1, 4).map((text) => {
      const made = button(text, () => {
        steer(text);
        mark();
      });
      if (known.size) made.prepend(drawn(text));
      return made;
    }),
  );
}

const INK = { red: "#e62828", green: "#28c83c", blue: "#325af0", yellow: "#f5e132", orange: "#ff8c14", purple: "#a53cd7", cyan: "#28d7e1", white: "#f5f5f5" };
const GROUND = { black: [32, 32, 38], navy: [16, 28, 100], gray: [100, 100, 104], forest: [14, 64, 30] };
const TILES = Array.from({ length: 64 }, (_, at) => [at % 8, at >> 3]).filter(([x, y]) => (x + y) % 2);
const OUTLINE = {
  circle: "M12 5a7 7 0 1 0 .01 0z",
  square: "M5 5h14v14h-14z",
  triangle: "M12 4l8 15h-16z",
  star: "M12 3l2.6 6 6.4.6-4.9 4.3 1.5 6.3-5.6-3.4-5.6 3.4 1.5-6.3-4.9-4.3 6.4-.6z",
  cross: "M9 4h6v5h5v6h-5v5h-6v-5h-5v-6h5z",
};

function drawn(text) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const named = (list) => text.split(" ").filter((word) => word in list).map((word) => list[word]);
  const [shapes, inks] = [named(OUTLINE), named(INK)];
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const tone = (light) => `rgb(${(named(GROUND)[0] ?? GROUND.black).map((part) => Math.round(part * light)).join()})`;
  draw(svg, "rect", { width: 24, height: 24, fill: tone(1.25) });
  draw(svg, "path", { d: TILES.map(([x, y]) => `M${3 * x} ${3 * y}h3v3h-3z`).join(""), fill: tone(0.75) });
  const place = (at) => (shapes.length > 1 ? `translate(${at % 2 ? 12 : 0} 6) scale(.5)` : "");
  shapes.forEach((d, at) => draw(svg, "path", { d, fill: inks[at] ?? INK.white, transform: place(at) }));
  return svg;
}

// Scales pictures to the room that there is: small ones by whole pixels of the screen, so that their edges stay as they are.
function fit() {
  const zoom = devicePixelRatio || 1;
  for (const canvas of [$("picture"), $("picture-b")]) {
    const box = canvas.parentElement;
    if (!box.clientWidth) continue;
    const room = Math.min((box.clientWidth - 34) / canvas.width, Math.min(0.62 * innerHeight, 720) / canvas.height);
    const whole = Math.floor(room * zoom);
    const scale = whole >= 2 ? whole / zoom : room;
    canvas.classList.toggle("whole", whole >= 2);
    canvas.style.width = `${canvas.width * scale}px`;
    canvas.style.height = `${canvas.height * scale}px`;
  }
}

function steer(text) {
  $("prompt").value = text;
  show.asked = text;
  tell({ type: "prompt", text, mode: $("mode").value || "recache", typed_ms: performance.now() });
}

function openSecond(secret) {
  second?.close();
  $("screen-b").hidden = false;
  fit();
  const over = ({ reason }) => ($("caption-b").textContent = reason);
  second = new Player($("picture-b"), {
    welcome(message) {
      $("caption-b").textContent = `branch: ${message.prompt}`;
      fit();
    },
    ended: over,
    refused: over,
  });
  second.secret = secret;
  second.open();
}

function closeSecond() {
  second?.close();
  second = null;
  $("screen-b").hidden = true;
  fit();
}

$("prompt-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (text) steer(text);
  else say(`the prompt is empty; say what to show, ${$("prompt").placeholder}`, "error");
});
$("prompt").addEventListener("input", mark);
$("mode").addEventListener("change", () => say(`${MODES[$("mode").value] ?? $("mode").value}: ${$("mode").selectedOptions[0].title}`));
$("play").addEventListener("click", () => tell({ type: player.playing ? "pause" : "play" }));
$("reset").addEventListener("click", () => tell({ type: "reset" }));
$("branch").addEventListener("click", () => tell({ type: "mark", name: "" }));
$("record").addEventListener("click", () => tell({ type: "record", on: $("record").getAttribute("aria-pressed") !== "true" }));
$("recipe").addEventListener("click", () => tell({ type: "recipe" }));
$("close-b").addEventListener("click", closeSecond);
$("settings").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [file] = $("image").files;
  const asked = { preset: $("preset").value, seed: Number($("seed").value) };
  if (!file) {
    tell({ type: "reset", ...asked });
    return;
  }
  const readable = await createImageBitmap(file).catch(() => null); // asked before the stream is given up for it
  if (!readable || file.size > 4_000_000) {
    const why = readable ? `has ${(file.size / 1e6).toFixed(1)} MB; at most 4 MB are taken` : "cannot be read; choose a PNG, JPEG or WebP";
    say(`the image ${why}`, "error");
    return;
  }
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  player.say({ type: "close" });
  player.secret = "";
  player.socket.close();
  clearTimeout(player.retry);
  player.open({ ...asked, prompt: $("prompt").value, image: btoa(text) });
});
$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("login", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token: $("token").value }) });
  if (answer.ok) retry({});
  else $("veil-text").textContent = (await answer.text()).trim();
});
addEventListener("keydown", (event) => {
  const key = event.key?.toLowerCase(); // autofill has none
  const control = { "/": "prompt", " ": "play", b: "branch", r: "record" }[key];
  const own = key === " " ? "input, select, button, a" : "input, select"; // where the key means something else
  if (!control || event.ctrlKey || event.metaKey || event.altKey || event.target.matches(own)) return;
  event.preventDefault();
  if (key === "/") $(control).select(), $(control).focus();
  else if (!event.repeat) $(control).click();
});

function figures() {
  const budget = show.welcome ? (1000 * show.welcome.block_frames) / show.welcome.fps : 750;
  if (show.welcome) {
    timeline.draw(show.welcome.fps);
    $("f-rtf").textContent = show.rtf === null ? "-" : `${show.rtf.toFixed(2)}×`;
    $("f-rtf").dataset.bad = show.rtf !== null && show.rtf < 1 ? "1" : "0";
    $("f-buffer").textContent = `${Math.round(player.bufferedMs)} ms`;
    $("f-stalls").textContent = player.stalls ? `${player.stalls}, ${(player.stallMs / 1000).toFixed(1)} s` : "0";
    const late = player.lateP95();
    $("f-late").textContent = late === null ? "-" : `${late.toFixed(1)} ms`;
  }
  if (show.dirty) {
    strip.draw(budget);
    drawCache($("cache"), $("cache-note"), show.cache);
    show.dirty = false;
  }
}
setInterval(figures, 250);
addEventListener("resize", () => {
  fit();
  show.dirty = true;
});

async function warm() {
  for (;;) {
    let answer = null;
    try {
      answer = await (await fetch("readyz")).json();
    } catch {
      veil("No server", "The server does not answer. This page tries again.");
    }
    if (answer?.error) {
      veil("The server could not start", answer.error);
      return false;
    }
    if (answer?.ready) {
      if (answer.login) {
        veil("Who is there?", "This server asks for its token.", { login: true });
        return false;
      }
      return true;
    }
    if (answer) veil(answer.doing === "shut down" ? "Shutting down" : "Warming up", answer.doing, { progress: answer.done / Math.max(1, answer.total) });
    await new Promise((wake) => setTimeout(wake, 250));
  }
}

// A connection that comes to nothing although the server is there: it answers a plain request with what a proxy must pass on.
async function explain() {
  if (!(await warm()) || show.welcome) return;
  const answer = await fetch("v1/stream").catch(() => null);
  if (answer?.status === 426 && !show.welcome) veil("No WebSocket", (await answer.text()).trim());
}

globalThis.strobe = { player, timeline, strip, drawn }; // for the console, and for tests
fit();
figures();
if (await warm()) player.open({});

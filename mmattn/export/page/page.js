// Show what the model finds in the image that a user drops.
import { open, predict, readImage } from './model.js';

const find = (name) => document.querySelector(name);
const MOST_TEXTS = 12;  // more scores would hide the objects
let session, model, shown, waiting;

const say = (text) => { find('#status').textContent = text; };
const nameOf = (label) => model.classes?.[label] ?? `class ${label}`;
const rgb = (label) => model.colors[label % model.colors.length];
const css = (label) => `rgb(${rgb(label).join()})`;

async function show(file) {
    if (!session) {
        waiting = file;
        return;
    }
    say('Running the model ...');
    find('#result').hidden = true;
    // The browser paints the line before the model blocks it.
    await new Promise((done) => { setTimeout(done, 50); });
    let image;
    try {
        image = await readImage(file);
    } catch {
        say(`${file.name} is no image that this browser can read.`);
        return;
    }
    try {
        const start = performance.now();
        const result = await predict(image, session, model);
        const seconds = ((performance.now() - start) / 1000).toFixed(1);
        shown = { image, result, seconds };
    } catch (error) {
        say(`The model failed on ${file.name}: ${error.message}`);
        return;
    }
    find('#result').hidden = false;
    draw();
}

function draw() {
    const { image, result } = shown;
    // Lines and texts on a small image need more pixels than it has.
    const zoom = Math.max(1, Math.ceil(640 / image.width));
    const canvas = find('canvas');
    canvas.width = image.width * zoom;
    canvas.height = image.height * zoom;
    const context = canvas.getContext('2d');
    context.drawImage(image.bitmap, 0, 0, canvas.width, canvas.height);
    const draws = {
        detection: drawObjects, segmentation: drawMap, classification: drawClasses,
    };
    const what = draws[model.task](context, result, zoom);
    say(`${what}, ${shown.seconds} s`);
}

// Color the pixels of an image: `colorOf` returns a color and an opacity, or null.
function tint(context, zoom, colorOf) {
    const { width, height } = shown.image, data = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
        const found = colorOf(i);
        if (found) data.data.set([...found[0], found[1] * 255], i * 4);
    }
    const layer = new OffscreenCanvas(width, height);
    layer.getContext('2d').putImageData(data, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(layer, 0, 0, width * zoom, height * zoom);
}

function drawObjects(context, { boxes, scores, labels, masks }, zoom) {
    const least = Number(find('#score input').value);
    find('#score output').textContent = least.toFixed(2);
    const kept = scores.flatMap((score, i) => (score >= least ? [i] : []));
    // Objects differ in color where classes do not.
    const colorOf = (i) => ((model.classes?.length ?? 2) > 1 ? labels[i] : i);
    if (masks) {
        tint(context, zoom, (pixel) => {
            const top = kept.find((i) => masks[i][pixel]);
            return top === undefined ? null : [rgb(colorOf(top)), 0.4];
        });
    }
    context.lineWidth = 2;
    context.font = '14px sans-serif';
    for (const i of kept) {
        const [x1, y1, x2, y2] = boxes[i].map((x) => x * zoom);
        context.strokeStyle = css(colorOf(i));
        context.strokeRect(x1, y1, x2 - x1, y2 - y1);
        if (kept.length > MOST_TEXTS) continue;
        const text = `${nameOf(labels[i])} ${scores[i].toFixed(2)}`;
        context.fillStyle = css(colorOf(i));
        context.fillRect(x1, Math.max(y1 - 18, 0), context.measureText(text).width + 6, 18);
        const [r, g, b] = rgb(colorOf(i));
        context.fillStyle = 0.3 * r + 0.6 * g + 0.1 * b < 110 ? '#fff' : '#000';
        context.fillText(text, x1 + 3, Math.max(y1 - 4, 14));
    }
    const counts = new Map();
    for (const i of kept) counts.set(labels[i], (counts.get(labels[i]) ?? 0) + 1);
    fill([...counts].sort((a, b) => b[1] - a[1]), (model.classes?.length ?? 2) > 1);
    return `${kept.length} objects with a score of at least ${least}`;
}

function drawMap(context, { map }, zoom) {
    tint(context, zoom, (i) => [rgb(map[i]), 0.5]);
    const counts = new Map();
    for (const label of map) counts.set(label, (counts.get(label) ?? 0) + 1);
    const shares = [...counts].sort((a, b) => b[1] - a[1]).map(([label, count]) =>
        [label, `${(count / map.length * 100).toFixed(1)}%`]);
    fill(shares, true);
    return `${shares.length} classes`;
}

function drawClasses(context, { scores }) {
    const best = scores.map((score, label) => [label, score.toFixed(3)]);
    best.sort((a, b) => scores[b[0]] - scores[a[0]]);
    fill(best.slice(0, 5), false);
    return nameOf(best[0][0]);
}

// Fill the table with labels and values.
function fill(rows, isColored) {
    find('table').replaceChildren(...rows.map(([label, value]) => {
        const row = document.createElement('tr'), name = row.insertCell();
        if (isColored) {
            const square = document.createElement('span');
            square.className = 'color';
            square.style.background = css(label);
            name.append(square);
        }
        name.append(nameOf(label));
        row.insertCell().textContent = value;
        return row;
    }));
}

function addExample(path) {
    const button = document.createElement('button'), image = new Image();
    image.src = path;
    image.alt = `example ${path.split('/').at(-1)}`;
    button.append(image);
    button.addEventListener('click', async () => {
        const content = await (await fetch(path)).blob();
        show(new File([content], path, { type: content.type }));
    });
    find('#examples').append(button);
}

find('#drop input').addEventListener('change', ({ target }) => {
    if (target.files.length) show(target.files[0]);
    target.value = '';  // so that the same file can be chosen again
});
find('#score input').addEventListener('input', () => draw());
for (const kind of ['dragover', 'dragleave', 'drop']) {
    document.addEventListener(kind, (event) => {
        event.preventDefault();
        find('#drop').classList.toggle('over', kind === 'dragover');
        if (kind === 'drop' && event.dataTransfer.files.length) {
            show(event.dataTransfer.files[0]);
        }
    });
}

try {
    [session, model] = await open();
    document.title = model.title;
    find('#title').textContent = model.title;
    find('#score').hidden = model.task !== 'detection';
    model.examples.forEach(addExample);
    say('');
    if (waiting) show(waiting);
} catch (error) {
    say(`The model cannot be loaded: ${error.message}`);
}

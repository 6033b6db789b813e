// Show what the model finds in the image that a user drops.
import { document as documentOf } from './coco.js';
import { describe, open, predict, readImage } from './model.js';

const find = (name) => document.querySelector(name);
const MOST_TEXTS = 12;  // more scores would hide the objects
const TEXT = 13, LINE = 2, CLASSES = 5;  // pixels of the screen; classes to show
let session, model, shown, waiting;

const say = (text) => { find('#status').textContent = text; };
const nameOf = (label) => model.classes?.[label] ?? `class ${label}`;
const rgb = (label) => model.colors[label % model.colors.length];
const css = (label) => `rgb(${rgb(label).join()})`;

// Show what the model finds in a file; `source`, which gave it, gets the frame.
async function show(file, source) {
    find('.chosen')?.classList.remove('chosen');
    source.classList.add('chosen');
    if (!session) {
        waiting = [file, source];
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
        const name = file.name.split('/').at(-1);
        shown = { image, result, seconds, name };
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
    // Pixels of the canvas for one of the screen, where it is shown smaller.
    shown.pixel = Math.max(1, canvas.width / canvas.clientWidth);
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
    const size = TEXT * shown.pixel, height = size * 1.3, { canvas } = context;
    context.lineWidth = LINE * shown.pixel;
    context.font = `${size}px sans-serif`;
    context.textBaseline = 'middle';
    for (const i of kept) {
        const [x1, y1, x2, y2] = boxes[i].map((x) => x * zoom);
        context.strokeStyle = css(colorOf(i));
        context.strokeRect(x1, y1, x2 - x1, y2 - y1);
        if (kept.length > MOST_TEXTS) continue;
        const text = `${nameOf(labels[i])} ${scores[i].toFixed(2)}`;
        const width = context.measureText(text).width + size / 2;
        const left = Math.max(0, Math.min(x1, canvas.width - width));
        const top = Math.max(0, Math.min(y1 - height, canvas.height - height));
        context.fillStyle = css(colorOf(i));
        context.fillRect(left, top, width, height);
        const [r, g, b] = rgb(colorOf(i));
        context.fillStyle = 0.3 * r + 0.6 * g + 0.1 * b < 110 ? '#fff' : '#000';
        context.fillText(text, left + size / 4, top + height / 2);
    }
    const counts = new Map();
    for (const i of kept) counts.set(labels[i], (counts.get(labels[i]) ?? 0) + 1);
    fill([...counts].sort((a, b) => b[1] - a[1]), (model.classes?.length ?? 2) > 1);
    shown.kept = kept;
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
    shown.kept = [...scores.keys()].sort((a, b) => scores[b] - scores[a])
        .slice(0, CLASSES);
    fill(shown.kept.map((label) => [label, scores[label].toFixed(3)]), false);
    return nameOf(shown.kept[0]);
}

function save(blob, ending) {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(blob);
    link.download = shown.name.replace(/\.[^.]*$/, '') + ending;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
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
        show(new File([content], path, { type: content.type }), button);
    });
    find('#examples').append(button);
}

find('#drop input').addEventListener('change', ({ target }) => {
    if (target.files.length) show(target.files[0], find('#drop'));
    target.value = '';  // so that the same file can be chosen again
});
find('#score input').addEventListener('input', () => draw());
addEventListener('resize', () => { if (!find('#result').hidden) draw(); });
find('#json').addEventListener('click', () => {
    const { result, kept, image, name } = shown;
    const found = documentOf(
        result, kept, image, name, nameOf, model.classes?.length ?? 0);
    save(new Blob([JSON.stringify(found)]), '.json');
});
find('#picture').addEventListener('click', () => {
    find('canvas').toBlob((blob) => save(blob, '_result.png'));
});
for (const kind of ['dragover', 'dragleave', 'drop']) {
    document.addEventListener(kind, (event) => {
        event.preventDefault();
        find('#drop').classList.toggle('over', kind === 'dragover');
        if (kind === 'drop' && event.dataTransfer.files.length) {
            show(event.dataTransfer.files[0], find('#drop'));
        }
    });
}

try {
    model = await describe();
    document.title = model.title;
    find('#title').textContent = model.title;
    find('#score').hidden = model.task !== 'detection';
    model.examples.forEach(addExample);
    const size = `${(model.bytes / 1e6).toFixed(1)} MB`;
    session = await open((here) => {
        say(`Loading the model, ${size}: ${Math.floor(100 * here / model.bytes)}%`);
    });
    say('');
    if (waiting) show(...waiting);
} catch (error) {
    say(`The model cannot be loaded: ${error.message}`);
}

// Run an exported model in the browser: `prepare` and `results` repeat inputs.py and
// results.py of mmattn.export, whose names they share.
import * as ort from './onnxruntime-web.js';

const even = (x) => {
    const near = Math.round(x);  // halves go up; Python rounds them to even numbers
    return Math.abs(x % 1) === 0.5 && near % 2 ? near - 1 : near;
};
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const padded = (size, divisor) => size.map((x) => Math.ceil(x / divisor) * divisor);
const scaled = (size, factor) => size.map((x) => Math.floor(x * factor + 0.5));

// ---- images: {pixels: Uint8 RGB, height, width} ----

function resizeRows(image, width, taps) {
    // Of each new column, `taps(column)` yields [old column, integer weight].
    const { pixels, height } = image, out = new Float64Array(height * width * 3);
    for (let x = 0; x < width; x++) {
        for (const [old, weight] of taps(x)) {
            for (let y = 0; y < height; y++) {
                const from = (y * image.width + old) * 3, to = (y * width + x) * 3;
                for (let c = 0; c < 3; c++) out[to + c] += weight * pixels[from + c];
            }
        }
    }
    return out;
}

function transposed({ pixels, height, width }) {
    const out = new Uint8ClampedArray(pixels.length);
    for (let y = 0; y < height; y++) {
        for (let x = 0; x < width; x++) {
            for (let c = 0; c < 3; c++) {
                out[(x * height + y) * 3 + c] = pixels[(y * width + x) * 3 + c];
            }
        }
    }
    return { pixels: out, height: width, width: height };
}

// OpenCV's bilinear resize of bytes has weights of 11 bits, and truncates twice.
function linearTap(old, size, i) {
    const position = Math.fround((i + 0.5) * (old / size) - 0.5);
    const first = Math.floor(position), part = Math.fround(position - first);
    return [first, even(Math.fround(1 - part) * 2048), even(part * 2048)];
}

function resizeLinear(image, height, width) {
    const out = new Uint8ClampedArray(height * width * 3);
    const rows = resizeRows(image, width, (x) => {
        const [first, a, b] = linearTap(image.width, width, x);
        if (first < 0) return [[0, 2048]];
        if (first >= image.width - 1) return [[image.width - 1, 2048]];
        return [[first, a], [first + 1, b]];
    });
    for (let y = 0; y < height; y++) {
        const [first, a, b] = linearTap(image.height, height, y);
        const top = clamp(first, 0, image.height - 1) * width * 3;
        const below = clamp(first + 1, 0, image.height - 1) * width * 3;
        for (let i = 0; i < width * 3; i++) {
            const up = (a * (rows[top + i] >> 4)) >> 16;
            const down = (b * (rows[below + i] >> 4)) >> 16;
            out[y * width * 3 + i] = (up + down + 2) >> 2;
        }
    }
    return { pixels: out, height, width };
}

// ... and becomes a mean of four pixels at exactly half the size.
function halved({ pixels, width: old }, height, width) {
    const out = new Uint8ClampedArray(height * width * 3);
    for (let y = 0; y < height; y++) {
        for (let i = 0; i < width * 3; i++) {
            const at = (2 * y * old + 2 * Math.floor(i / 3)) * 3 + (i % 3);
            const above = pixels[at] + pixels[at + 3];
            const below = pixels[at + old * 3] + pixels[at + old * 3 + 3];
            out[y * width * 3 + i] = (above + below + 2) >> 2;
        }
    }
    return { pixels: out, height, width };
}

const nearest = (old, size, i) => Math.min(Math.floor(i * (1 / (size / old))), old - 1);

function resizeNearest(image, height, width) {
    const out = new Uint8ClampedArray(height * width * 3);
    for (let y = 0; y < height; y++) {
        const row = nearest(image.height, height, y) * image.width;
        for (let x = 0; x < width; x++) {
            const from = (row + nearest(image.width, width, x)) * 3;
            out.set(image.pixels.subarray(from, from + 3), (y * width + x) * 3);
        }
    }
    return { pixels: out, height, width };
}

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
const FILTERS = {  // Pillow's: half a width, and a weight of the distance
    box: [0.5, (x) => +(x > -0.5 && x <= 0.5)],
    bilinear: [1, (x) => Math.max(1 - Math.abs(x), 0)],
    hamming: [1, (x) => (Math.abs(x) >= 1 ? 0
        : sinc(x) * (0.54 + 0.46 * Math.cos(Math.PI * x)))],
    bicubic: [2, (x) => {
        x = Math.abs(x);
        if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
        return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
    }],
    lanczos: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

// Pillow smooths when it shrinks. Its weights have 22 bits.
function smoothRows(image, width, interpolation) {
    if (image.width === width) return image;
    const [half, weigh] = FILTERS[interpolation];
    const scale = image.width / width, stretch = Math.max(scale, 1);
    const out = resizeRows(image, width, (x) => {
        const center = (x + 0.5) * scale, reach = half * stretch;
        const first = Math.max(Math.trunc(center - reach + 0.5), 0);
        const end = Math.min(Math.trunc(center + reach + 0.5), image.width);
        const weights = [];
        for (let i = first; i < end; i++) {
            weights.push(weigh((i - center + 0.5) / stretch));
        }
        const sum = weights.reduce((a, b) => a + b, 0);
        return weights.map((weight, i) => {
            const value = (weight / sum) * 2 ** 22;
            return [first + i, Math.trunc(value + (value < 0 ? -0.5 : 0.5))];
        });
    });
    const pixels = Uint8ClampedArray.from(out, (x) => (x + 2 ** 21) >> 22);
    return { pixels, height: image.height, width };
}

export function resize(image, height, width, { interpolation, backend }) {
    if (backend === 'pillow') {
        const rows = transposed(smoothRows(image, width, interpolation));
        return transposed(smoothRows(rows, height, interpolation));
    }
    if (image.height === height && image.width === width) return image;
    if (interpolation === 'nearest') return resizeNearest(image, height, width);
    if (image.height === 2 * height && image.width === 2 * width) {
        return halved(image, height, width);
    }
    return resizeLinear(image, height, width);
}

// ---- inputs ----

function pipelineSize([H, W], settings, grown) {
    if (settings.short_side !== undefined) {
        const side = even(settings.short_side * grown);
        return W < H ? [Math.trunc(side * H / W), side]
            : [side, Math.trunc(side * W / H)];
    }
    const least = Math.min(H, W), most = Math.max(H, W);
    let scale = settings.scale;
    if (settings.factor !== undefined) scale = scaled([H, W], settings.factor);
    else if (!scale) return [H, W];
    else if (!settings.keep_ratio) return [scale[1], scale[0]];
    const ratio = [Math.max(...scale) / most, Math.min(...scale) / least];
    return scaled([H, W], Math.min(...ratio));
}

function targetSize(size, { resize, crop, dynamic, shape, pad }) {
    const fixed = dynamic !== 'size', settings = resize ?? {};
    const fills = (sides) => {
        const [H, W] = padded(sides, pad.divisor);
        return H === shape[0] && W === shape[1];
    };
    let grown = 1;
    if (fixed && crop && !fills(crop)) {
        grown = Math.max(shape[0] / crop[0], shape[1] / crop[1]);
        crop = shape;
    }
    let [H, W] = pipelineSize(size, settings, grown);
    if (fixed && !(settings.keep_ratio ?? true) && !fills([H, W])) [H, W] = shape;
    if (fixed && !crop && (H > shape[0] || W > shape[1])) {
        [H, W] = scaled(size, Math.min(shape[0] / size[0], shape[1] / size[1]));
    }
    return [Math.max(H, 1), Math.max(W, 1), crop];
}

// Return the tensor of an image, (3, H, W), with its size before padding.
export function prepare(image, model) {
    const [height, width, crop] = targetSize([image.height, image.width], model);
    const settings = model.resize ?? { interpolation: 'bilinear', backend: 'cv2' };
    const small = resize(image, height, width, settings);
    const [h, w] = crop ? [Math.min(crop[0], height), Math.min(crop[1], width)]
        : [height, width];
    const top = Math.max(0, even((height - h) / 2));
    const left = Math.max(0, even((width - w) / 2));
    const shape = model.dynamic === 'size' ? padded([h, w], model.pad.divisor)
        : model.shape;
    const least = model.least ?? [1, 1];
    if (shape[0] < least[0] || shape[1] < least[1]) {
        throw new Error(`the model takes images from ${least[1]} x ${least[0]} `
            + `pixels on, got ${shape[1]} x ${shape[0]}`);
    }
    const isByte = model.input_dtype === 'uint8', area = shape[0] * shape[1];
    const pixels = new (isByte ? Uint8Array : Float32Array)(3 * area);
    for (let c = 0; c < 3; c++) {
        const from = model.channel_order === 'bgr' ? 2 - c : c;
        const raw = (x) => x * model.std[c] + model.mean[c];
        let fill = model.normalized ? raw(model.pad.value) : model.pad.value;
        if (isByte) fill = clamp(even(fill), 0, 255);
        pixels.fill(fill, c * area, (c + 1) * area);
        for (let y = 0; y < h; y++) {
            for (let x = 0; x < w; x++) {
                const value = small.pixels[((top + y) * width + left + x) * 3 + from];
                pixels[c * area + y * shape[1] + x] = model.normalized ? value
                    : (value - model.mean[c]) / model.std[c];
            }
        }
    }
    return { pixels, shape, size: [h, w], original: [image.height, image.width] };
}

// ---- results ----

// Return the first pixel of a box's side, and for each one its position in the mask.
function maskTaps(start, end, length, cells) {
    if (!(end > start && Number.isFinite(end - start))) return [0, []];
    const first = Math.max(Math.floor(start) - 1, 0);
    const last = Math.max(Math.min(Math.ceil(end) + 1, length), first);
    const taps = Array.from({ length: last - first }, (_, i) =>
        (first + i + 0.5 - start) / (end - start) * cells - 0.5);
    return [first, taps];
}

function pasteMask(mask, [h, w], [x1, y1, x2, y2], [H, W], threshold) {
    const out = new Uint8Array(H * W);
    const [top, rows] = maskTaps(y1, y2, H, h), [left, columns] = maskTaps(x1, x2, W, w);
    const at = (y, x) => (y < 0 || x < 0 || y >= h || x >= w ? 0 : mask[y * w + x]);
    rows.forEach((y, i) => columns.forEach((x, j) => {
        const y0 = Math.floor(y), x0 = Math.floor(x), dy = y - y0, dx = x - x0;
        const above = at(y0, x0) * (1 - dx) + at(y0, x0 + 1) * dx;
        const below = at(y0 + 1, x0) * (1 - dx) + at(y0 + 1, x0 + 1) * dx;
        if (above * (1 - dy) + below * dy >= threshold) {
            out[(top + i) * W + left + j] = 1;
        }
    }));
    return out;
}

function detections({ dets, labels, masks }, { size, original }, model) {
    const found = { boxes: [], scores: [], labels: [], masks: masks && [] };
    const scale = [size[1] / original[1], size[0] / original[0]];
    for (let i = 0; i < labels.data.length; i++) {
        const label = Number(labels.data[i]), score = dets.data[i * 5 + 4];
        if (label < 0) continue;
        const box = [0, 1, 2, 3].map((k) => dets.data[i * 5 + k] / scale[k % 2]);
        found.boxes.push(box);
        found.scores.push(score);
        found.labels.push(label);
        if (!masks) continue;
        const [, , h, w] = masks.dims;
        const mask = masks.data.subarray(i * h * w, (i + 1) * h * w);
        const threshold = model.mask_threshold ?? 0.5;
        found.masks.push(pasteMask(mask, [h, w], box, original, threshold));
    }
    return found;
}

function neighbors(old, size, alignCorners) {
    return Array.from({ length: size }, (_, i) => {
        const position = alignCorners ? i * ((old - 1) / Math.max(size - 1, 1))
            : Math.max((i + 0.5) * (old / size) - 0.5, 0);
        const before = Math.min(Math.trunc(position), old - 1);
        return [before, Math.min(before + 1, old - 1), position - before];
    });
}

function labelMap(output, { size: [h, w], original: [H, W] }, model) {
    const map = new Uint16Array(H * W), stride = output.dims.at(-1);
    if (output.dims.length === 3) {
        for (let y = 0; y < H; y++) {
            const row = nearest(h, H, y) * stride;
            for (let x = 0; x < W; x++) {
                map[y * W + x] = Number(output.data[row + nearest(w, W, x)]);
            }
        }
        return map;
    }
    const [, C, rows] = output.dims, { data } = output;
    const columns = neighbors(w, W, model.align_corners);
    const threshold = model.mask_threshold ?? 0.5;
    neighbors(h, H, model.align_corners).forEach(([up, down, dy], y) => {
        columns.forEach(([left, right, dx], x) => {
            let best = -Infinity;
            for (let c = 0; c < C; c++) {
                const top = (c * rows + up) * stride, below = (c * rows + down) * stride;
                const before = data[top + left] * (1 - dy) + data[below + left] * dy;
                const after = data[top + right] * (1 - dy) + data[below + right] * dy;
                const value = before * (1 - dx) + after * dx;
                if (C === 1) map[y * W + x] = +(1 / (1 + Math.exp(-value)) > threshold);
                else if (value > best) [best, map[y * W + x]] = [value, c];
            }
        });
    });
    return map;
}

// Return `boxes`, `scores`, `labels` and `masks`, or `map`, or the `scores` of classes.
export function results(outputs, prepared, model) {
    if (model.task === 'detection') return detections(outputs, prepared, model);
    const first = outputs[model.outputs[0]];
    if (model.task === 'segmentation') return { map: labelMap(first, prepared, model) };
    return { scores: Array.from(first.data) };
}

// Return the result for an image.
export async function predict(image, session, model) {
    const prepared = prepare(image, model);
    const type = model.input_dtype, dims = [1, 3, ...prepared.shape];
    const feed = { image: new ort.Tensor(type, prepared.pixels, dims) };
    if (model.inputs.includes('image_size')) {
        const size = BigInt64Array.from(prepared.size, BigInt);
        feed.image_size = new ort.Tensor('int64', size, [1, 2]);
    }
    return results(await session.run(feed), prepared, model);
}

export async function describe() {
    return (await fetch('model.json')).json();
}

async function bytesOf(name, add) {
    const answer = await fetch(name), parts = [];
    if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
    const reader = answer.body.getReader();
    for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        parts.push(value);
        add(value.length);
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
}

// Load the files of a model; `progress` gets the bytes that are here.
export async function open(progress = () => {}) {
    let here = 0;
    const add = (count) => { progress(here += count); };
    const [runtime, weights] = await Promise.all(
        ['onnxruntime-web.wasm', 'model.onnx'].map((name) => bytesOf(name, add)));
    ort.env.wasm.wasmBinary = runtime.buffer;
    const options = { executionProviders: ['wasm'] };
    return ort.InferenceSession.create(weights, options);
}

// Return the pixels of an image file, without its transparency.
export async function readImage(file) {
    const bitmap = await createImageBitmap(file, { colorSpaceConversion: 'none' });
    const { height, width } = bitmap;
    const context = new OffscreenCanvas(width, height).getContext('2d');
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, width, height);
    const pixels = new Uint8ClampedArray(height * width * 3);
    for (let i = 0; i < height * width; i++) {
        pixels.set(data.subarray(i * 4, i * 4 + 3), i * 3);
    }
    return { pixels, height, width, bitmap };
}

// Write a result in the JSON format of COCO, as coco.py of mmattn.results does.

// Return uncompressed run lengths, which go down the columns and begin with zeros.
function encodeMask(isSet, height, width) {
    const counts = [0];
    for (let x = 0, last = false; x < width; x++) {
        for (let y = 0; y < height; y++) {
            const now = isSet(y * width + x);
            if (now !== last) counts.push(0);
            counts[counts.length - 1] += 1;
            last = now;
        }
    }
    return { size: [height, width], counts };
}

function maskEntry(isSet, height, width) {
    let [left, top, right, bottom, area] = [width, height, 0, 0, 0];
    for (let i = 0; i < height * width; i++) {
        if (!isSet(i)) continue;
        const x = i % width, y = Math.floor(i / width);
        [left, top] = [Math.min(left, x), Math.min(top, y)];
        [right, bottom] = [Math.max(right, x + 1), Math.max(bottom, y + 1)];
        area += 1;
    }
    const segmentation = encodeMask(isSet, height, width);
    return { bbox: [left, top, right - left, bottom - top], area, segmentation };
}

function objects({ boxes, scores, labels, masks }, kept, { height, width }) {
    return kept.map((i) => {
        const [x1, y1, x2, y2] = boxes[i], [w, h] = [x2 - x1, y2 - y1];
        const mask = masks && maskEntry((at) => masks[i][at] > 0, height, width);
        const shape = mask ? { area: mask.area, segmentation: mask.segmentation }
            : { area: w * h };
        return {
            category_id: labels[i] + 1, bbox: [x1, y1, w, h], score: scores[i], ...shape,
        };
    });
}

// Return a document of the objects `kept`, of the label map, or of the best classes.
export function document(found, kept, image, name, nameOf, count) {
    if (!found.map && !found.boxes) {
        const best = kept.map((i) => ({ name: nameOf(i), score: found.scores[i] }));
        return { file_name: name, classes: best };
    }
    const { height, width } = image;
    const present = found.map && [...new Set(found.map)].sort((a, b) => a - b);
    const entries = found.boxes ? objects(found, kept, image) : present.map((label) => ({
        category_id: label + 1, ...maskEntry((i) => found.map[i] === label, height, width),
    }));
    const used = entries.map((entry) => entry.category_id);
    const last = Math.max(count, ...used);
    return {
        images: [{ id: 1, file_name: name, height, width }],
        annotations: entries.map((entry, i) =>
            ({ id: i + 1, image_id: 1, iscrowd: 0, ...entry })),
        categories: Array.from({ length: last }, (_, i) =>
            ({ id: i + 1, name: nameOf(i) })),
    };
}

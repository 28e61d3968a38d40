package evaluate

// FixedBytes is what tests measure requests against.
const FixedBytes = fixedBytes

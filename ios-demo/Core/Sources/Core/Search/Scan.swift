import Foundation

/// Compares a query with every row of an index, in numbers that are equal in Python, Kotlin and Swift.
enum Scan {
    private static let mostCode = 127.0

    /// Returns the int8 codes of a vector, or its numbers, as they lie in `vectors.bin`. Codes are of the numbers as they are;
    /// numbers of a vector that is cut are scaled to unit length again, where the model's embeddings are.
    ///
    /// - Parameter vector: whole; an index of a smaller width keeps its first numbers.
    /// - Throws: `OutputError` where it is none of the model's, or not finite.
    static func stored(_ vector: [Float], _ spec: IndexSpec) throws -> [UInt8] {
        let cut = try cut(vector, spec)
        if let scales = spec.scales {
            return zip(cut, scales).map { number, scale in
                let code = (Double(number) / scale).rounded(.toNearestOrEven)
                return UInt8(bitPattern: Int8(min(max(code, -mostCode), mostCode)))
            }
        }
        let length = spec.isUnitLength && cut.count < vector.count ? length(cut) : 1
        let numbers = cut.map { (length == 0 ? 0 : Float(Double($0) / length)).bitPattern.littleEndian }
        return numbers.withUnsafeBytes { [UInt8]($0) }
    }

    private static func cut(_ vector: [Float], _ spec: IndexSpec) throws -> [Float] {
        if vector.count < spec.width {
            throw OutputError(description: "the embedding has \(vector.count) numbers, and the index keeps \(spec.width)")
        }
        if !vector.allSatisfy(\.isFinite) { throw OutputError(description: "the embedding has a number that is not finite") }
        return Array(vector.prefix(spec.width))
    }

    private static func length(_ numbers: [Float]) -> Double { numbers.reduce(0) { $0 + Double($1) * Double($1) }.squareRoot() }

    /// Returns the lengths of rows, for indexes whose rows are not of unit length because the model's are not, or cut.
    static func norms(_ rows: MappedRows, _ spec: IndexSpec) -> [Float] {
        (0..<(rows.bytes.count / spec.rowBytes)).map { row in
            var sum = 0.0
            for at in 0..<spec.width {
                let number: Double
                if let scales = spec.scales {
                    number = Double(Int8(bitPattern: rows.bytes[row * spec.width + at])) * scales[at]
                } else {
                    number = Double(float(rows.bytes, row * spec.width + at))
                }
                sum += number * number
            }
            return Float(sum.squareRoot())
        }
    }

    private static func float(_ bytes: UnsafeRawBufferPointer, _ place: Int) -> Float {
        Float(bitPattern: UInt32(littleEndian: bytes.loadUnaligned(fromByteOffset: place * 4, as: UInt32.self)))
    }

    /// Returns the rows that are nearest to a query, the nearest first; of equal ones the first row.
    ///
    /// - Parameters:
    ///   - query: a whole embedding.
    ///   - norms: of the rows; nil where all are 1.
    ///   - removed: rows that are passed over.
    static func nearest(
        _ query: [Float], _ rows: MappedRows, _ spec: IndexSpec, norms: [Float]?, top: Int, removed: Removed
    ) throws -> [(row: Int, cosine: Float)] {
        let cut = try cut(query, spec)
        var best = Best(top: top)
        // Divided as a float of 32 bits, which is what all languages have at hand.
        func perNorm(_ row: Int, _ dot: Double) -> Double { norms.map { quotient(Double(Float(dot)), Double($0[row])) } ?? dot }
        func offer(_ row: Int, _ dot: Double) {
            if removed.contains(row) { return }
            best.offer(row, spec.isByDot ? dot : perNorm(row, dot))
        }
        guard let first = rows.bytes.baseAddress else { return [] }
        let count = rows.bytes.count / spec.rowBytes
        var step = 1.0
        if let scales = spec.scales {
            let codes = QueryCodes(cut, scales)
            step = codes.step
            let stored = first.assumingMemoryBound(to: Int8.self)
            codes.codes.withUnsafeBufferPointer { query in
                for row in 0..<count { offer(row, Double(dot(query, stored + row * spec.width))) }
            }
        } else {
            let stored = first.assumingMemoryBound(to: UInt32.self)
            cut.withUnsafeBufferPointer { query in
                for row in 0..<count { offer(row, Double(Float(dot(query, stored + row * spec.width)))) }
            }
        }
        let length = length(cut)
        return best.rows.map { found in
            let score = spec.isByDot ? perNorm(found.row, found.score) : found.score
            return (row: found.row, cosine: Float(quotient(score * step, length)))
        }
    }

    /// What has no direction has cosine 0.
    private static func quotient(_ number: Double, _ length: Double) -> Double { length > 0 ? number / length : 0 }

    /// Returns the sum of products of codes, which cannot overflow: see `QueryCodes`.
    private static func dot(_ query: UnsafeBufferPointer<Int16>, _ row: UnsafePointer<Int8>) -> Int32 {
        var sum: Int32 = 0
        for at in 0..<query.count { sum &+= Int32(query[at]) &* Int32(row[at]) }
        return sum
    }

    private static func dot(_ query: UnsafeBufferPointer<Float>, _ row: UnsafePointer<UInt32>) -> Double {
        var sum = 0.0
        for at in 0..<query.count { sum += Double(query[at]) * Double(Float(bitPattern: UInt32(littleEndian: row[at]))) }
        return sum
    }
}

/// A query as whole numbers, so small that the sum over a row of int8 codes stays within 32 bits.
struct QueryCodes {
    private static let mostOf16Bits = 32_767
    private static let mostCode = 127
    let codes: [Int16]
    /// By what a sum of products is multiplied to have the dot product.
    let step: Double

    init(_ query: [Float], _ scales: [Double]) {
        let most = Double(min(Self.mostOf16Bits, Int(Int32.max) / (Self.mostCode * query.count)))
        let products = zip(query, scales).map { Double($0) * $1 }
        let largest = products.map(abs).max() ?? 0
        codes = products.map { largest == 0 ? 0 : Int16(($0 / largest * most).rounded(.toNearestOrEven)) }
        step = largest / most
    }
}

/// Rows that were removed.
struct Removed {
    private var words: [UInt64] = []
    private(set) var count = 0

    func contains(_ row: Int) -> Bool { row >> 6 < words.count && words[row >> 6] >> UInt64(row & 63) & 1 == 1 }

    /// Whether the row was not there before.
    @discardableResult
    mutating func insert(_ row: Int) -> Bool {
        if contains(row) { return false }
        if row >> 6 >= words.count { words += [UInt64](repeating: 0, count: row >> 6 + 1 - words.count) }
        words[row >> 6] |= 1 << UInt64(row & 63)
        count += 1
        return true
    }

    var bytes: Int { words.count * 8 }
}

/// The rows with the largest scores, offered in the order of their numbers.
private struct Best {
    let top: Int
    private(set) var rows: [(row: Int, score: Double)] = []

    init(top: Int) { self.top = top }

    mutating func offer(_ row: Int, _ score: Double) {
        // Of equal ones the earlier row stays before.
        if rows.count == top, rows.last.map({ score <= $0.score }) ?? true { return }
        if rows.count == top { rows.removeLast() }
        let place = rows.firstIndex { $0.score < score } ?? rows.count
        rows.insert((row, score), at: place)
    }
}

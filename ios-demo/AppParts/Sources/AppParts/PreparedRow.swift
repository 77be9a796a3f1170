import Core

/// The inputs of a row as a runtime takes them, made before the run is timed, and kept while the row stays the same.
public struct PreparedRow<Inputs> {
    private var last: (row: PaddedRow, inputs: Inputs)?

    public init() {}

    /// Returns the inputs of a row: those that were made for it last, or new ones.
    public mutating func inputs(_ row: PaddedRow, make: (PaddedRow) throws -> Inputs) rethrows -> Inputs {
        if let last, last.row.function.name == row.function.name, last.row.inputs == row.inputs { return last.inputs }
        let inputs = try make(row)
        last = (row, inputs)
        return inputs
    }
}

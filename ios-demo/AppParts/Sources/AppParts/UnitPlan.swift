/// On which units a system plans to run the operations of a file, over all of its functions.
public struct UnitPlan: Sendable, Equatable {
    /// An operation with the unit that computes it.
    public struct Operation: Sendable {
        let unit: String
        let cost: Double?

        /// - Parameters:
        ///   - unit: such as `Neural Engine`.
        ///   - cost: its share of the function's time as the system estimates it; nil where it does not.
        public init(_ unit: String, cost: Double?) {
            self.unit = unit
            self.cost = cost
        }
    }

    /// Operations by the unit that computes them.
    public let counts: [String: Int]
    /// Share of the work of each unit; every function counts alike.
    public let shares: [String: Double]

    /// Adds the functions up; nil where one of them has no operation.
    ///
    /// - Parameters:
    ///   - functions: the operations of each function.
    ///   - units: all that there are, so that one that computes nothing is named.
    public init?(_ functions: [[Operation]], units: [String]) {
        var counts = Dictionary(uniqueKeysWithValues: units.map { ($0, 0) })
        var shares = counts.mapValues { _ in 0.0 }
        for operations in functions {
            // By estimated cost if the system estimates one, by operations elsewhere.
            let costs = operations.map { max(0, $0.cost ?? 0) }
            let isEstimated = costs.contains { $0 > 0 }
            let all = isEstimated ? costs.reduce(0, +) : Double(operations.count)
            if operations.isEmpty || !all.isFinite { return nil }
            for (operation, cost) in zip(operations, costs) {
                counts[operation.unit, default: 0] += 1
                shares[operation.unit, default: 0] += (isEstimated ? cost : 1) / all / Double(functions.count)
            }
        }
        if functions.isEmpty { return nil }
        self.counts = counts
        self.shares = shares
    }

    public var all: Int { counts.values.reduce(0, +) }

    /// The unit with the largest share.
    public var busiest: String? { shares.max { ($0.value, $1.key) < ($1.value, $0.key) }?.key }
}

import Core

/// Why long work rests.
public enum Rest: Sendable, Equatable {
    case hot
    case lowBattery
}

/// Says when a phone is in no state for work of minutes that nobody waits for.
public struct EnergyGate: Sendable {
    /// `serious` of iOS and `moderate` of Android, from which on a system slows down who goes on.
    private static let hotFrom = 2
    private static let leastBattery = 0.2
    private let phone: any Phone

    public init(_ phone: any Phone) { self.phone = phone }

    /// Returns why such work has to rest now; nil where it may go on, or the phone does not tell.
    public func rest() -> Rest? {
        let now = phone.moment()
        if let thermal = now.thermal, let place = phone.thermalStates.firstIndex(of: thermal), place >= Self.hotFrom { return .hot }
        if now.charging == true { return nil }
        if now.lowPower == true { return .lowBattery }
        return now.batteryFraction.map { $0 < Self.leastBattery } ?? false ? .lowBattery : nil
    }
}

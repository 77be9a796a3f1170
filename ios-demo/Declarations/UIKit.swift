// Declared after Apple's documentation of UIKit; see README.md.
@_exported import Foundation

@MainActor
open class UIDevice {
    public enum BatteryState: Int, Sendable {
        case unknown, unplugged, charging, full
    }
    public class var current: UIDevice { fatalError() }
    public var isBatteryMonitoringEnabled: Bool {
        get { fatalError() }
        set { fatalError() }
    }
    public var batteryLevel: Float { fatalError() }
    public var batteryState: BatteryState { fatalError() }
}

@MainActor
open class UIApplication {
    public enum State: Int, Sendable {
        case active, inactive, background
    }
    public class var shared: UIApplication { fatalError() }
    public nonisolated class var didEnterBackgroundNotification: Notification.Name { fatalError() }
    public var applicationState: State { fatalError() }
    public var isIdleTimerDisabled: Bool {
        get { fatalError() }
        set { fatalError() }
    }
}

// Foundation's, where it is Apple's.
extension ProcessInfo {
    public enum ThermalState: Int, Sendable {
        case nominal, fair, serious, critical
    }
    public var thermalState: ThermalState { fatalError() }
    public var isLowPowerModeEnabled: Bool { fatalError() }
}

package pocketbert.models

import pocketbert.core.benchmark.Phone

/** Why long work rests. */
enum class Rest { HOT, LOW_BATTERY }

/** Says when a phone is in no state for work of minutes that nobody waits for. */
class EnergyGate(private val phone: Phone) {
    /** Returns why such work has to rest now; null where it may go on, or the phone does not tell. */
    fun rest(): Rest? {
        val now = phone.moment()
        return when {
            phone.thermalStates.indexOf(now.thermal) >= HOT_FROM -> Rest.HOT
            now.charging == true -> null
            now.lowPower == true -> Rest.LOW_BATTERY
            now.batteryFraction.let { it != null && it < LEAST_BATTERY } -> Rest.LOW_BATTERY
            else -> null
        }
    }

    private companion object {
        /** `moderate` of Android and `serious` of iOS, from which on a system slows down who goes on. */
        const val HOT_FROM = 2
        const val LEAST_BATTERY = 0.2
    }
}

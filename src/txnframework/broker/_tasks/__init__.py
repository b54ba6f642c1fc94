"""What asyncio lacks and every part needs: opened once, bounded work beside, guarded work, the first of several."""
